//! Where the log goes and what it looks like.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Sends the log to standard error, as text for people or as JSON lines for programs.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("ETHER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if std::env::var_os("ETHER_LOG_FORMAT").is_some_and(|format| format == "json") {
        builder.json().init();
    } else {
        let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        builder.with_ansi(colours).with_target(false).init();
    }
}
