//! Stories of an owner, a worker and a controller: real files, real TLS, real sockets.

mod gateway;
mod owner;
mod stage;
