//! What tests of several crates share: real servers of the kinds that ether talks to.

pub mod house;
pub mod postgres;
