//! `ether doctor`.

use std::sync::Arc;

use ether_node::doctor::{Grade, Subject, examine};
use ether_types::SystemClock;

use crate::cli::DoctorArgs;
use crate::status::Status;

/// Prints every finding; fails where one is a failure.
pub(crate) fn run(args: DoctorArgs) -> Status {
    let Some(data_dir) = args.place.data_dir.or_else(ether_node::default_data_dir) else {
        eprintln!("ether: neither XDG_DATA_HOME nor HOME is set: name a data directory with --data-dir");
        return Status::Storage;
    };
    let subject = Subject {
        data_dir,
        scratch_dir: args.place.scratch_dir,
        listen: args.place.listen,
        ffmpeg: args.place.ffmpeg,
        ffprobe: args.place.ffprobe,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("ether: {error}");
            return Status::Failed;
        }
    };
    let findings = runtime.block_on(examine(&subject, Arc::new(SystemClock::new())));
    if args.json {
        match serde_json::to_string_pretty(&findings) {
            Ok(json) => println!("{json}"),
            Err(error) => eprintln!("ether: {error}"),
        }
    } else {
        for finding in &findings {
            println!("{finding}");
        }
    }
    let worst = findings
        .iter()
        .map(|finding| finding.grade)
        .max()
        .unwrap_or(Grade::Ok);
    if worst == Grade::Failure {
        Status::Failed
    } else {
        Status::Done
    }
}
