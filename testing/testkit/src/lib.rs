//! What tests of several crates share: real servers of the kinds that ether talks to, and damaged films.

pub mod damage;
pub mod house;
pub mod postgres;
