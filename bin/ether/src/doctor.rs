//! `ether doctor`.

use std::sync::Arc;

use ether_node::doctor::{Area, Grade, Subject, examine};
use ether_types::SystemClock;

use crate::cli::DoctorArgs;
use crate::status::Status;

/// Prints every finding; ends as a server would that meets the first of those that keep it from working.
pub(crate) fn run(args: DoctorArgs) -> Status {
    let Some(data_dir) = args.place.data_dir.or_else(ether_node::default_data_dir) else {
        eprintln!("ether: neither XDG_DATA_HOME nor HOME is set: name a data directory with --data-dir");
        return Status::Storage;
    };
    let subject = Subject {
        media: crate::serve::folders(args.media),
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
    // A folder whose share does not answer may hold a thread for ever.
    runtime.shutdown_background();
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
    let failure = findings.iter().find(|finding| finding.grade == Grade::Failure);
    failure.map_or(Status::Done, |finding| status_of(finding.subject))
}

fn status_of(area: Area) -> Status {
    match area {
        Area::Ffmpeg | Area::Encoders | Area::Parts | Area::Hardware | Area::Ffprobe => Status::Ffmpeg,
        Area::DataDirectory | Area::Scratch => Status::Storage,
        Area::Media => Status::Media,
        Area::Port => Status::Address,
        Area::Processes | Area::Watches => Status::Failed,
    }
}
