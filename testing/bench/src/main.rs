//! Measures ether against the plain tools that do the same work, in one run on one machine.
//!
//! Absolute times of a shared machine mean little, so every measurement alternates ours and theirs and compares
//! medians; what has no counterpart is held to a bar of its own. The table goes to standard output, and the same
//! rows to `target/bench/report.json`.

mod encoder;
mod execution;
mod harness;
mod ledger;
mod machine;
mod nginx;
mod play;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::harness::{BenchError, Context, Report};

/// What the command line may say.
#[derive(Debug, Parser)]
#[command(about = "Measures ether against plain tools.")]
struct Args {
    /// The ether binary to measure, a release build.
    #[arg(long, default_value = "target/release/ether")]
    ether: PathBuf,
    /// Only the measurements whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// How many pairs each measurement takes.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    runs: u16,
    /// Where reports and scratch go.
    #[arg(long, default_value = "target/bench")]
    data: PathBuf,
    /// Where the clips of scripts/make-clips.sh are.
    #[arg(long, default_value = "target/clips")]
    clips: PathBuf,
    /// Real films; without them, what needs them is skipped and says so.
    #[arg(long, env = "ETHER_MEDIA")]
    films: Option<PathBuf>,
}

/// A set of measurements that share their preparation.
struct Group {
    name: &'static str,
    run: fn(&Context, &mut Report) -> Result<(), BenchError>,
}

/// Every group, in the order of the table.
const GROUPS: &[Group] = &[
    Group {
        name: "play",
        run: play::run,
    },
    Group {
        name: "encoder",
        run: encoder::run,
    },
    Group {
        name: "execution",
        run: execution::run,
    },
    Group {
        name: "ledger",
        run: ledger::run,
    },
];

fn main() -> ExitCode {
    let args = Args::parse();
    let context = match Context::new(args) {
        Ok(context) => context,
        Err(error) => {
            eprintln!("bench: {error}");
            return ExitCode::from(2);
        }
    };
    let mut report = Report::default();
    let mut failed = false;
    for group in GROUPS {
        if !context.wants_group(group.name) {
            continue;
        }
        if let Err(error) = (group.run)(&context, &mut report) {
            eprintln!("bench: {}: {error}", group.name);
            failed = true;
        }
    }
    print!("{}", report.table());
    match report.write(&context.data) {
        Ok(path) => println!("report: {}", path.display()),
        Err(error) => {
            eprintln!("bench: {error}");
            failed = true;
        }
    }
    if failed || report.is_over() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
