//! Playbacks: who may watch what, how it is sent to them, and the public HTTP surface.

pub mod ports;
