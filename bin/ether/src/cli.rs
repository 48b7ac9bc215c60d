//! The grammar of the command line. Every flag of `serve` and `doctor` has its environment variable.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// The variable that names folders of films.
pub(crate) const MEDIA_VARIABLE: &str = "ETHER_SERVE_MEDIA";
/// Port that a server listens on when nothing else is said.
pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:32400";

/// Encodes of 1080p in real time that a machine may be said to take.
const CAPACITY: RangeInclusive<i64> = 1..=4_096;
/// MiB of scratch space.
const SCRATCH: RangeInclusive<i64> = 64..=16_777_216;
/// MiB of segments that are kept.
const SEGMENT_CACHE: RangeInclusive<i64> = 0..=16_777_216;

/// The numbers that may stand in a flag, by its name; nothing for flags that take no number.
pub(crate) fn range(flag: &str) -> Option<RangeInclusive<i64>> {
    match flag {
        "capacity" => Some(CAPACITY),
        "scratch" => Some(SCRATCH),
        "segment-cache" => Some(SEGMENT_CACHE),
        _ => None,
    }
}

/// A streaming server that turns any video file into what a viewer's player can show.
#[derive(Debug, Parser)]
#[command(name = "ether", version, about, after_long_help = crate::status::HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve folders of films to browsers and players.
    Serve(ServeArgs),
    /// Look for what would keep a server from working, and say how to mend it.
    Doctor(DoctorArgs),
    /// List the environment variables.
    #[command(long_about = crate::environment::help())]
    Environment,
}

/// Arguments of `ether serve`.
#[derive(Debug, Args)]
#[command(after_long_help = crate::status::HELP)]
pub(crate) struct ServeArgs {
    /// A folder of films; may be given several times (in the variable: separated by colons).
    #[arg(long = "media", value_name = "DIR", env = MEDIA_VARIABLE, value_delimiter = None, required = true)]
    pub(crate) media: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Open the page in a browser once the server is ready.
    #[arg(long, env = "ETHER_OPEN", value_parser = BoolishValueParser::new())]
    pub(crate) open: bool,
    /// Encodes of 1080p in real time that this machine takes at once [default: one a processor].
    #[arg(long, value_name = "N", env = "ETHER_CAPACITY", value_parser = clap::value_parser!(u16).range(CAPACITY))]
    pub(crate) capacity: Option<u16>,
    /// Scratch space for all playbacks together, in MiB.
    #[arg(long, value_name = "MIB", env = "ETHER_SCRATCH", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(SCRATCH))]
    pub(crate) scratch: u32,
    /// Disk space for encoded segments that are kept for the next viewer, in MiB; 0 keeps none.
    #[arg(long, value_name = "MIB", env = "ETHER_SEGMENT_CACHE", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(SEGMENT_CACHE))]
    pub(crate) segment_cache: u32,
    /// Which devices may encode: `auto` whatever proves that it can, `off` none (the processor encodes), or one kind.
    #[arg(long, value_name = "KIND", env = "ETHER_HWACCEL", value_enum, default_value_t = Hardware::Auto)]
    pub(crate) hwaccel: Hardware,
    /// A name besides localhost and the address itself that the server answers to; may be given several times,
    /// or separated by commas.
    #[arg(
        long = "host",
        value_parser = host,
        value_name = "NAME",
        env = "ETHER_HOSTS",
        value_delimiter = ','
    )]
    pub(crate) hosts: Vec<String>,
    /// The origin of another page that may use this server; may be given several times, or separated by commas.
    #[arg(
        long = "origin",
        value_parser = origin,
        value_name = "URL",
        env = "ETHER_ORIGINS",
        value_delimiter = ','
    )]
    pub(crate) origins: Vec<String>,
}

/// Devices that may encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hardware {
    /// Whatever proves that it can.
    Auto,
    /// None: the processor encodes.
    Off,
    /// VA-API.
    Vaapi,
    /// NVENC.
    Nvenc,
    /// Intel Quick Sync.
    Qsv,
}

/// Arguments of `ether doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// A folder of films to look at too; may be given several times (in the variable: separated by colons).
    #[arg(long = "media", value_name = "DIR", env = MEDIA_VARIABLE, value_delimiter = None)]
    pub(crate) media: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Print the findings as JSON.
    #[arg(long, env = "ETHER_DOCTOR_JSON", value_parser = BoolishValueParser::new())]
    pub(crate) json: bool,
}

/// What a server and its doctor look at alike.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Where the server keeps what it knows [default: $XDG_DATA_HOME/ether or ~/.local/share/ether].
    #[arg(long, value_name = "DIR", env = "ETHER_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Where the server listens; port 0 takes any free one.
    #[arg(long, value_name = "ADDR:PORT", env = "ETHER_LISTEN", default_value = DEFAULT_LISTEN)]
    pub(crate) listen: SocketAddr,
    /// A directory on a local disk for scratch files, which is made where only its last part is missing [default:
    /// inside the data directory].
    #[arg(long, value_name = "DIR", env = "ETHER_SCRATCH_DIR")]
    pub(crate) scratch_dir: Option<PathBuf>,
    /// The FFmpeg program.
    #[arg(long, value_name = "PROGRAM", env = "ETHER_FFMPEG", default_value = "ffmpeg")]
    pub(crate) ffmpeg: PathBuf,
    /// The ffprobe program.
    #[arg(
        long,
        value_name = "PROGRAM",
        env = "ETHER_FFPROBE",
        default_value = "ffprobe"
    )]
    pub(crate) ffprobe: PathBuf,
}

/// A host name or address, without a port.
fn host(text: &str) -> Result<String, String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if !text.is_empty() && text.len() <= 253 && text.bytes().all(fits) {
        Ok(text.to_owned())
    } else {
        Err("a host is a name or an address without a port, such as media.example.org".to_owned())
    }
}

/// An origin as browsers send it: scheme, host and port, nothing after.
fn origin(text: &str) -> Result<String, String> {
    let rest = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    match rest {
        Some(rest) if host(rest).is_ok() => Ok(text.to_owned()),
        _ => Err(
            "an origin is http:// or https:// and a host, nothing after, such as https://tv.example.org"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_grammar_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_the_server_has_its_variable() {
        let command = Cli::command();
        for name in ["serve", "doctor"] {
            let sub = command.find_subcommand(name).unwrap();
            let bare: Vec<_> = sub
                .get_arguments()
                .filter(|a| a.get_env().is_none())
                .map(|a| a.get_id().as_str())
                .filter(|id| *id != "help")
                .collect();
            assert!(bare.is_empty(), "{name}: {bare:?}");
        }
    }

    #[test]
    fn a_folder_may_have_any_name() {
        let odd = "/films/-dash 'quote' 100%\nline";
        let cli = Cli::try_parse_from(["ether", "serve", "--media", odd, "--media=-leading"]).unwrap();
        let Command::Serve(args) = cli.command else {
            panic!("not serve")
        };
        assert_eq!(args.media, [PathBuf::from(odd), PathBuf::from("-leading")]);
    }

    #[test]
    fn hosts_and_origins_that_could_never_match_are_refused() {
        let parse = |flag, value| Cli::try_parse_from(["ether", "serve", "--media", "x", flag, value]);
        for (flag, bad) in [("--host", "a b"), ("--origin", "foo"), ("--origin", "http://x/")] {
            assert!(parse(flag, bad).is_err(), "{flag} {bad}");
        }
        assert!(parse("--host", "media.example.org,[::1]").is_ok());
        assert!(parse("--origin", "https://tv.example.org:8443").is_ok());
    }

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        let parse = |flag: &str, number: i64| {
            let text = format!("--{flag}={number}");
            Cli::try_parse_from(["ether", "serve", "--media", "x", &text])
        };
        for flag in ["capacity", "scratch", "segment-cache"] {
            let range = range(flag).unwrap();
            assert!(parse(flag, *range.start()).is_ok() && parse(flag, *range.end()).is_ok());
            for beyond in [range.start() - 1, range.end() + 1] {
                let refused = parse(flag, beyond).unwrap_err().to_string();
                let named = format!("{}..={}", range.start(), range.end());
                assert!(refused.contains(&named), "{refused}");
            }
        }
    }
}
