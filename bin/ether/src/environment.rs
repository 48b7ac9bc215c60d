//! The one registry of environment variables: the flags' own, read off the grammar, and the few without a flag.

use clap::CommandFactory;

use crate::status::Status;

/// Variables that are not a flag's.
const OTHERS: [(&str, &str); 3] = [
    (
        "ETHER_LOG",
        "what is logged, as a tracing filter; the default is info",
    ),
    ("ETHER_LOG_FORMAT", "text (the default) or json"),
    ("NO_COLOR", "set to anything: no colours in the log"),
];

/// The list, as `ether help environment` shows it.
pub(crate) fn help() -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    // Not the whole grammar: this list is a part of it.
    let serve = <crate::cli::ServeArgs as clap::Args>::augment_args(clap::Command::new("serve"));
    let doctor = <crate::cli::DoctorArgs as clap::Args>::augment_args(clap::Command::new("doctor"));
    for command in [serve, doctor] {
        for argument in command.get_arguments() {
            let Some(name) = argument.get_env() else { continue };
            let flag = argument
                .get_long()
                .map(|long| format!("--{long}: "))
                .unwrap_or_default();
            let what = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let row = (name.to_string_lossy().into_owned(), format!("{flag}{what}"));
            // Commands share some of their flags.
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    rows.extend(OTHERS.map(|(name, what)| (name.to_owned(), what.to_owned())));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = rows
        .iter()
        .map(|(name, what)| format!("  {name:<width$}  {what}"));
    format!(
        "Environment variables. A flag on the command line wins over its variable.\n\n{}",
        lines.collect::<Vec<_>>().join("\n")
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
    #[test]
    fn the_list_names_every_variable_once() {
        let help = super::help();
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
}
