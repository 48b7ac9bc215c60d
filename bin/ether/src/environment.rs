//! The one registry of environment variables: the flags' own, read off the grammar, and the few without a flag.

use clap::{Arg, ArgAction, CommandFactory};

use crate::status::Status;

/// One variable as the list shows it.
struct Row {
    name: String,
    /// The flag that it stands for, where there is one.
    flag: Option<String>,
    meaning: String,
    /// What may stand in it.
    range: String,
    default: String,
}

/// Variables that are not a flag's: name, meaning, range, default.
const OTHERS: [(&str, &str, &str, &str); 3] = [
    (
        "ETHER_LOG",
        "what is logged",
        "a tracing filter, such as warn or info,ether_ffmpeg=debug",
        "info",
    ),
    ("ETHER_LOG_FORMAT", "how the log is written", "text, json", "text"),
    ("NO_COLOR", "no colours in the log", "anything at all", "unset"),
];

/// Every variable, those of flags first.
fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    // Not the whole grammar: this list is a part of it.
    let serve = <crate::cli::ServeArgs as clap::Args>::augment_args(clap::Command::new("serve"));
    let doctor = <crate::cli::DoctorArgs as clap::Args>::augment_args(clap::Command::new("doctor"));
    for command in [serve, doctor] {
        for argument in command.get_arguments() {
            let Some(row) = row(argument) else { continue };
            // Commands share some of their flags.
            if !rows.iter().any(|other| other.name == row.name) {
                rows.push(row);
            }
        }
    }
    rows.extend(OTHERS.map(|(name, meaning, range, default)| Row {
        name: name.to_owned(),
        flag: None,
        meaning: meaning.to_owned(),
        range: range.to_owned(),
        default: default.to_owned(),
    }));
    rows
}

fn row(argument: &Arg) -> Option<Row> {
    let name = argument.get_env()?.to_string_lossy().into_owned();
    let flag = argument.get_long()?;
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    // What is no constant is said in the help, as `--help` shows it.
    let (meaning, said) = match help.split_once(" [default: ") {
        Some((meaning, said)) => (
            meaning.to_owned(),
            Some(said.trim_end_matches([']', '.']).to_owned()),
        ),
        None => (help, None),
    };
    let constant: Vec<_> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    let switch = matches!(argument.get_action(), ArgAction::SetTrue);
    let default = match (said, switch, constant.is_empty()) {
        (Some(said), _, _) => said,
        (None, true, _) => "false".to_owned(),
        (None, false, false) => constant.join(", "),
        (None, false, true) if argument.is_required_set() => "none, it must be given".to_owned(),
        (None, false, true) => "none".to_owned(),
    };
    Some(Row {
        name,
        flag: Some(format!("--{flag}")),
        meaning: meaning.trim_end_matches('.').to_owned(),
        range: range(argument, flag, switch),
        default,
    })
}

fn range(argument: &Arg, flag: &str, switch: bool) -> String {
    if switch {
        return "true, false".to_owned();
    }
    if let Some(range) = crate::cli::range(flag) {
        return format!("{} to {}", range.start(), range.end());
    }
    let values = argument.get_possible_values();
    if !values.is_empty() {
        let words: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
        return words.join(", ");
    }
    let named = argument.get_value_names().and_then(|names| names.first());
    match named.map(|name| name.as_str()) {
        Some("DIR") => "a directory",
        Some("PROGRAM") => "a path, or a name that is found as a shell finds it",
        Some("ADDR:PORT") => "an IP address and a port, 0 to 65535",
        Some("NAME") => "host names or addresses, without ports",
        Some("URL") => "http:// or https:// and a host, with or without a port",
        _ => "text",
    }
    .to_owned()
}

/// The list, as `ether help environment` shows it.
pub(crate) fn help() -> String {
    let shown = rows().into_iter().map(|row| {
        let flag = row
            .flag
            .map_or_else(|| "no flag".to_owned(), |flag| format!("same as {flag}"));
        format!(
            "  {} ({flag})\n      {}.\n      Range: {}. Default: {}.",
            row.name, row.meaning, row.range, row.default
        )
    });
    format!(
        "Environment variables. A flag on the command line wins over its variable.\n\n{}",
        shown.collect::<Vec<_>>().join("\n")
    )
}

/// Prints the list.
pub(crate) fn run() -> Status {
    // The grammar is built once more so that a mistake in it shows here too.
    crate::cli::Cli::command().build();
    println!("{}", help());
    Status::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_every_variable_once() {
        let help = help();
        for name in [
            "ETHER_DATA_DIR",
            "ETHER_LISTEN",
            "ETHER_SERVE_MEDIA",
            "ETHER_LOG",
            "ETHER_FFMPEG",
            "ETHER_DOCTOR_JSON",
        ] {
            assert_eq!(help.matches(&format!("  {name} ")).count(), 1, "{name}");
        }
    }

    #[test]
    fn every_variable_has_its_flag_its_meaning_its_range_and_its_default() {
        let rows = rows();
        for row in &rows {
            let filled = [&row.meaning, &row.range, &row.default];
            assert!(
                filled.iter().all(|text| text.len() >= 3),
                "{}: {filled:?}",
                row.name
            );
            assert!(row.range != "text", "{} takes what?", row.name);
            assert!(!row.meaning.contains("[default"), "{}", row.meaning);
        }
        let of = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(of("ETHER_HWACCEL").range, "auto, off, vaapi, nvenc, qsv");
        assert_eq!(of("ETHER_SCRATCH").range, "64 to 16777216");
        assert_eq!(of("ETHER_SCRATCH").default, "8192");
        assert_eq!(of("ETHER_CAPACITY").default, "one a processor");
        assert_eq!(of("ETHER_SCRATCH_DIR").default, "inside the data directory");
        assert_eq!(of("ETHER_DATA_DIR").flag.as_deref(), Some("--data-dir"));
    }
}
