//! The placement ledger against plain databases doing the same row changes, durability at its defaults.
//!
//! - `ledger/postgres-cycle`: reserve, renew and retire by eight clients, against pgbench calling one function on
//!   the server for each of the three, under the same lock and with the same rows changed;
//! - `ledger/growth`: the same cycle all over a million tombstones, against a thousand;
//! - `ledger/renew-many`: ten thousand sessions renewed in one call, against one by one;
//! - `ledger/sqlite-cycle`: the cycle by one client on a SQLite file, against a bare loop of its statements on the
//!   same driver.

mod bare;
mod plain;
mod setup;

use std::path::Path;
use std::process::Command;

use ether_placement::Ledger;
use ether_testkit::postgres::{Durability, Server};
use ether_types::Timestamp;

use crate::harness::{Bar, BenchError, Context, Report, alternate, time};
use crate::ledger::bare::Bare;
use crate::ledger::setup::{Bench, Sessions, cycles};

const CLIENTS: u32 = 8;
/// Cycles of one client in one sample on PostgreSQL.
const CYCLES: u64 = 40;
/// Cycles of one sample on SQLite.
const FILE_CYCLES: u64 = 200;
const SESSIONS: u32 = 10_000;
/// How many of the sessions are renewed one by one; the time is scaled up to all of them.
const ONE_BY_ONE: u32 = 500;

/// Runs the ledger's measurements.
pub(crate) fn run(context: &Context, report: &mut Report) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(BenchError::io("a runtime"))?;
    if context.wants("ledger/sqlite-cycle") {
        sqlite_cycle(context, report, &runtime)?;
    }
    let on_postgres = ["ledger/postgres-cycle", "ledger/growth", "ledger/renew-many"];
    if !on_postgres.iter().any(|name| context.wants(name)) {
        return Ok(());
    }
    let Some(server) = Server::start(15, Durability::Default) else {
        for name in on_postgres {
            report.skip(name, "PostgreSQL 15 is not installed");
        }
        return Ok(());
    };
    if context.wants("ledger/postgres-cycle") {
        postgres_cycle(context, report, &runtime, &server)?;
    }
    if context.wants("ledger/growth") {
        growth(context, report, &runtime, &server)?;
    }
    if context.wants("ledger/renew-many") {
        renew_many(context, report, &runtime, &server)?;
    }
    Ok(())
}

fn postgres_cycle(
    context: &Context,
    report: &mut Report,
    runtime: &tokio::runtime::Runtime,
    server: &Server,
) -> Result<(), BenchError> {
    let bench = runtime.block_on(Bench::open(&server.fresh_schema()))?;
    let schema = "bench_plain";
    server.schema(schema);
    server.sql(&format!("SET search_path = {schema}; {}", plain::POSTGRES));
    let script = context.data.join("ledger.pgbench");
    std::fs::write(&script, plain::PGBENCH).map_err(BenchError::io(script.display().to_string()))?;
    let per_cycle = 1_000.0 / (f64::from(CLIENTS) * CYCLES as f64);
    let mut round = 0;
    let (ours, plain) = alternate(
        context.runs,
        || {
            round += 1;
            let elapsed = time(|| runtime.block_on(cycles(&bench, Sessions::Own, CLIENTS, CYCLES, round)))?;
            Ok(elapsed * per_cycle)
        },
        || pgbench(server, schema, &script),
    )?;
    let bar = Bar {
        most: 1.25,
        slack: 0.0,
    };
    report.compare("ledger/postgres-cycle", "ms", bar, &ours, &plain);
    Ok(())
}

/// Milliseconds per cycle, all clients together.
fn pgbench(server: &Server, schema: &str, script: &Path) -> Result<f64, BenchError> {
    let socket = server.socket();
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let output = tool("pgbench")
        .args(["-n", "-M", "prepared", "-j", "2", "-U", "postgres"])
        .args(["-c", &CLIENTS.to_string(), "-t", &CYCLES.to_string()])
        .arg("-f")
        .arg(script)
        .arg("-h")
        .arg(directory)
        .arg("postgres")
        .env("PGOPTIONS", format!("-c search_path={schema}"))
        .output()
        .map_err(BenchError::io("pgbench"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = || BenchError::Tool {
        tool: "pgbench".to_owned(),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    if !output.status.success() {
        return Err(failed());
    }
    let rate = text.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate = rate.and_then(|line| line.split(' ').next()?.parse::<f64>().ok());
    rate.map(|cycles| 1_000.0 / cycles).ok_or_else(failed)
}

fn growth(
    context: &Context,
    report: &mut Report,
    runtime: &tokio::runtime::Runtime,
    server: &Server,
) -> Result<(), BenchError> {
    let open = |tombstones: u32| {
        let url = server.fresh_schema();
        let bench = runtime.block_on(Bench::open(&url))?;
        let schema = url.rsplit('=').next().unwrap_or_default().to_owned();
        server.sql(&plain::tombstones(&schema, tombstones));
        Ok::<_, BenchError>((bench, Sessions::Tombstones(u64::from(tombstones))))
    };
    let (many, few) = (open(1_000_000)?, open(1_000)?);
    server.sql("VACUUM ANALYZE; CHECKPOINT");
    let per_cycle = 1_000.0 / (f64::from(CLIENTS) * CYCLES as f64);
    let sample = |(bench, sessions): &(Bench, Sessions), round: u64| {
        let elapsed = time(|| runtime.block_on(cycles(bench, *sessions, CLIENTS, CYCLES, round)))?;
        Ok(elapsed * per_cycle)
    };
    let (mut round, mut other) = (0, 0);
    let (ours, plain) = alternate(
        context.runs,
        || {
            round += 1;
            sample(&many, round)
        },
        || {
            other += 1;
            sample(&few, other)
        },
    )?;
    let bar = Bar {
        most: 1.5,
        slack: 0.0,
    };
    report.compare("ledger/growth", "ms", bar, &ours, &plain);
    Ok(())
}

fn renew_many(
    context: &Context,
    report: &mut Report,
    runtime: &tokio::runtime::Runtime,
    server: &Server,
) -> Result<(), BenchError> {
    let bench = runtime.block_on(Bench::open(&server.fresh_schema()))?;
    let (fences, first) = runtime.block_on(setup::fill(&bench, SESSIONS))?;
    server.sql("VACUUM ANALYZE");
    let mut step: i64 = 0;
    let mut other: i64 = 0;
    // Every renewal moves its deadline a little further; the two sides move different halves of a second.
    let deadline = |step: i64, half: i64| Timestamp::from_micros(first.as_micros() + step * 1_000_000 + half);
    let ledger: &Ledger = &bench.ledger;
    let (ours, plain) = alternate(
        context.runs,
        || {
            step += 1;
            let renewals = fences
                .iter()
                .map(|fence| (fence.clone(), deadline(step, 0)))
                .collect();
            time(|| {
                let answers = runtime.block_on(ledger.renew_many(renewals));
                answers
                    .map_err(|e| BenchError::Other(e.to_string()))?
                    .into_iter()
                    .try_for_each(setup::moved)
            })
            .map(|seconds| seconds * 1_000.0)
        },
        || {
            other += 1;
            let elapsed = time(|| {
                fences.iter().take(ONE_BY_ONE as usize).try_for_each(|fence| {
                    setup::moved(runtime.block_on(ledger.renew(fence.clone(), deadline(other, 500_000))))
                })
            })?;
            Ok(elapsed * 1_000.0 * f64::from(SESSIONS) / f64::from(ONE_BY_ONE))
        },
    )?;
    let bar = Bar {
        most: 0.02,
        slack: 0.0,
    };
    report.compare("ledger/renew-many", "ms", bar, &ours, &plain);
    Ok(())
}

fn sqlite_cycle(
    context: &Context,
    report: &mut Report,
    runtime: &tokio::runtime::Runtime,
) -> Result<(), BenchError> {
    let directory = context.scratch("ledger-sqlite")?;
    let bench = runtime.block_on(Bench::open(&format!(
        "sqlite:{}",
        directory.join("ours.db").display()
    )))?;
    // Once opened, both go on in the same file: a log that was just created grows with every commit, which costs several
    // times what writing into it again does.
    let mut bare = Some(runtime.block_on(Bare::create(&directory.join("bare.db")))?);
    let mut round = 0;
    let (ours, plain) = alternate(
        context.runs,
        || {
            round += 1;
            let elapsed = time(|| runtime.block_on(cycles(&bench, Sessions::Own, 1, FILE_CYCLES, round)))?;
            Ok(elapsed * 1_000.0 / FILE_CYCLES as f64)
        },
        || {
            let mut plain = bare
                .take()
                .ok_or_else(|| BenchError::Other("a plain round failed".into()))?;
            let elapsed = time(|| {
                // On a task, as our client is.
                let round = runtime.spawn(async move { (plain.cycles(FILE_CYCLES).await, plain) });
                let (done, plain) = runtime
                    .block_on(round)
                    .map_err(|error| BenchError::Other(error.to_string()))?;
                bare = Some(plain);
                done
            })?;
            Ok(elapsed * 1_000.0 / FILE_CYCLES as f64)
        },
    )?;
    let bar = Bar {
        most: 1.25,
        slack: 0.0,
    };
    report.compare("ledger/sqlite-cycle", "ms", bar, &ours, &plain);
    Ok(())
}

#[allow(
    clippy::disallowed_methods,
    reason = "the plain tools that ours is compared with are no children of ether"
)]
fn tool(program: &str) -> Command {
    Command::new(program)
}

/// The verifier of the benchmark: it accepts at once, since judging proofs is not what is measured.
pub(crate) struct Accept;

impl ether_placement::Verifier for Accept {
    fn at_once(
        &self,
        presented: &ether_placement::Presented,
    ) -> Option<Result<ether_placement::Acceptance, ether_placement::VerifyError>> {
        Some(Ok(ether_placement::Acceptance {
            fence: presented.fence.clone(),
            kind: ether_placement::EvidenceKind::Reaped,
        }))
    }

    fn verify(&self, presented: ether_placement::Presented) -> ether_placement::Verdict<'_> {
        Box::pin(async move {
            Ok(ether_placement::Acceptance {
                fence: presented.fence,
                kind: ether_placement::EvidenceKind::Reaped,
            })
        })
    }
}
