//! What every group shares: the context of a run, alternating pairs, and the report.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ether_types::{Clock, SystemClock};
use serde::Serialize;

use crate::Args;

/// Why a measurement gave no figure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The system refused something.
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// A plain tool failed.
    #[error("{tool} failed ({status}): {stderr}")]
    Tool {
        tool: String,
        status: std::process::ExitStatus,
        stderr: String,
    },
    /// A plain database.
    #[error("the plain database: {0}")]
    Plain(#[from] sqlx::Error),
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

impl BenchError {
    /// Wraps an error of the system with what was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// One run of the benchmarks.
pub(crate) struct Context {
    pub(crate) ether: PathBuf,
    pub(crate) runs: usize,
    /// For reports and scratch; exists.
    pub(crate) data: PathBuf,
    pub(crate) clips: PathBuf,
    pub(crate) films: Option<PathBuf>,
    only: Option<String>,
}

impl Context {
    pub(crate) fn new(args: Args) -> Result<Self, BenchError> {
        let data = args.data;
        std::fs::create_dir_all(&data).map_err(BenchError::io(data.display().to_string()))?;
        let beside = PathBuf::from("../shared/media");
        let absolute = |path: PathBuf| {
            path.canonicalize()
                .map_err(BenchError::io(path.display().to_string()))
        };
        Ok(Self {
            ether: absolute(args.ether)?,
            runs: usize::from(args.runs),
            data: absolute(data)?,
            clips: absolute(args.clips)?,
            films: args.films.or_else(|| beside.is_dir().then_some(beside)),
            only: args.only,
        })
    }

    /// Whether a measurement was asked for.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }

    /// Whether any measurement of a group may have been asked for.
    pub(crate) fn wants_group(&self, group: &str) -> bool {
        let Some(only) = &self.only else { return true };
        match only.split_once('/') {
            Some((named, _)) => named == group,
            // A part of a name could belong to any group; its measurements are asked one by one.
            None => only == group || !crate::GROUPS.iter().any(|other| other.name == only),
        }
    }

    /// A folder below `data` that is made anew.
    pub(crate) fn scratch(&self, name: &str) -> Result<PathBuf, BenchError> {
        let dir = self.data.join(name);
        match std::fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(BenchError::io(dir.display().to_string())(e));
            }
            _ => {}
        }
        std::fs::create_dir_all(&dir).map_err(BenchError::io(dir.display().to_string()))?;
        Ok(dir)
    }
}

/// How long something takes, in seconds.
pub(crate) fn time<T>(work: impl FnOnce() -> Result<T, BenchError>) -> Result<f64, BenchError> {
    let clock = SystemClock::new();
    let start = clock.monotonic();
    work()?;
    Ok(clock.monotonic().saturating_since(start).as_secs_f64())
}

/// Takes `runs` pairs, ours before theirs each time, after one pair that warms caches and is not counted.
pub(crate) fn alternate<T>(
    runs: usize,
    mut ours: impl FnMut() -> Result<T, BenchError>,
    mut plain: impl FnMut() -> Result<T, BenchError>,
) -> Result<(Vec<T>, Vec<T>), BenchError> {
    ours()?;
    plain()?;
    let (mut a, mut b) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
    for _ in 0..runs {
        a.push(ours()?);
        b.push(plain()?);
    }
    Ok((a, b))
}

/// The middle of the samples; the mean of the two middle ones where their number is even.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (
        sorted.get(middle),
        middle.checked_sub(1).and_then(|i| sorted.get(i)),
    ) {
        (Some(high), Some(low)) if sorted.len().is_multiple_of(2) => f64::midpoint(*low, *high),
        (Some(middle), _) => *middle,
        (None, _) => f64::NAN,
    }
}

/// The most that a ratio may be: `most` times the plain median plus `slack` in its unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bar {
    pub(crate) most: f64,
    pub(crate) slack: f64,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    ours: f64,
    plain: Option<f64>,
    unit: &'static str,
    ratio: Option<f64>,
    /// What `ratio` (or, without one, `ours`) may be at most. A slack is already divided into it.
    bar: f64,
    runs: usize,
}

impl Row {
    fn is_over(&self) -> bool {
        let measured = self.ratio.unwrap_or(self.ours);
        // What is not a number has not kept its bar.
        measured.is_nan() || measured > self.bar
    }
}

/// What was measured so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    skipped: Vec<String>,
}

impl Report {
    /// Enters a comparison by its medians.
    pub(crate) fn compare(&mut self, name: &str, unit: &'static str, bar: Bar, ours: &[f64], plain: &[f64]) {
        let runs = ours.len().min(plain.len());
        let (ours, plain) = (median(ours), median(plain));
        self.enter(Row {
            name: name.into(),
            ours,
            plain: Some(plain),
            unit,
            ratio: Some(ours / plain),
            bar: bar.most + bar.slack / plain,
            runs,
        });
    }

    /// Enters a figure that has a bar of its own.
    pub(crate) fn absolute(&mut self, name: &str, unit: &'static str, most: f64, samples: &[f64]) {
        self.enter(Row {
            name: name.into(),
            ours: median(samples),
            plain: None,
            unit,
            ratio: None,
            bar: most,
            runs: samples.len(),
        });
    }

    /// Notes that something was not measured, and why.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        self.skipped.push(format!("{name}: {why}"));
    }

    fn enter(&mut self, row: Row) {
        eprintln!("{}", line(&row));
        self.rows.push(row);
    }

    /// Whether any bar was missed.
    pub(crate) fn is_over(&self) -> bool {
        self.rows.iter().any(Row::is_over)
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let mut out = format!(
            "{:<28} {:>12} {:>12} {:<6} {:>8} {:>8} {:>5}\n",
            "measurement", "ours", "plain", "unit", "ratio", "bar", "runs"
        );
        for row in &self.rows {
            out.push_str(&line(row));
            out.push('\n');
        }
        for skipped in &self.skipped {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "not measured: {skipped}");
        }
        out
    }

    /// Writes `report.json`.
    pub(crate) fn write(&self, dir: &Path) -> Result<PathBuf, BenchError> {
        let path = dir.join("report.json");
        let text = serde_json::to_string_pretty(&self.rows).map_err(|e| BenchError::Other(e.to_string()))?;
        std::fs::write(&path, text + "\n").map_err(BenchError::io(path.display().to_string()))?;
        Ok(path)
    }
}

fn line(row: &Row) -> String {
    let or_dash = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.3}"));
    format!(
        "{:<28} {:>12.3} {:>12} {:<6} {:>8} {:>8.3} {:>5}{}",
        row.name,
        row.ours,
        or_dash(row.plain),
        row.unit,
        or_dash(row.ratio),
        row.bar,
        row.runs,
        if row.is_over() { "  OVER" } else { "" }
    )
}

/// Sleeps; for waiting between askings, never for measuring.
pub(crate) fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_the_worst_run() {
        assert_eq!(median(&[3.0, 1.0, 100.0]), 3.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_slack_is_part_of_the_bar_and_a_missing_figure_is_over_it() {
        let mut report = Report::default();
        let bar = Bar {
            most: 1.15,
            slack: 15.0,
        };
        report.compare("a", "ms", bar, &[129.0], &[100.0]);
        assert!(!report.is_over());
        report.compare("a", "ms", bar, &[131.0], &[100.0]);
        assert!(report.is_over());
        let mut report = Report::default();
        report.absolute("b", "MiB", 40.0, &[]);
        assert!(report.is_over());
    }
}
