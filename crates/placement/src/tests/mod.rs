//! The ledger's tests. One conformance suite for every engine, a model that is explored exhaustively, and
//! everything that can go wrong between the two ends of a connection.

mod conformance;
mod faults;
mod group;
mod input;
mod model;
mod plain;
mod plans;
mod property;
mod quiet;
mod schema;
mod stories;
mod world;
mod year;
