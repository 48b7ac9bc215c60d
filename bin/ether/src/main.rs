//! ether: a streaming server. This binary is the CLI's grammar, its commands and their exit status.

mod cli;
mod doctor;
mod environment;
mod log;
mod progress;
mod serve;
mod status;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::status::Status;

fn main() -> ExitCode {
    // A child started with this word guards our processes and outlives us by design; it must come before
    // anything that takes time, threads or memory.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == ether_process::GUARDIAN_ARG)
    {
        return ether_process::guardian_main();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors; where they cannot be printed, nobody reads them.
            let _ = error.print();
            return if error.use_stderr() {
                Status::Usage.into()
            } else {
                Status::Done.into()
            };
        }
    };
    match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Environment => environment::run(),
    }
    .into()
}
