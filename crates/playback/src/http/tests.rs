//! Stories over real sockets: what browsers, players and strangers send, and what they get.

mod access;
mod bed;
mod devices;
mod failures;
mod files;
mod media;
mod openapi;
mod progressive;
mod secrets;
mod sessions;
mod sharing;
mod stopping;
mod subtitles;
