//! How `ffprobe` is asked, and what its silence means.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ether_media::{Facts, Gap};
use ether_process::Spec;

use crate::error::{NotMedia, ProbeError};
use crate::json;
use crate::run::{Runner, Unfinished};

/// Containers of sound and film. Everything else FFmpeg can open leads elsewhere (playlists, scripts, session
/// descriptions), is a picture or a subtitle, or is no file at all.
pub(crate) const FORMATS: &str = "3dostr,4xm,aa,aac,ac3,aiff,amr,amrnb,amrwb,ape,apm,asf,ast,au,av1,avi,avs2,\
avs3,bink,caf,cavsvideo,cdxl,cine,dfa,dhav,dirac,dnxhd,dsf,dts,dtshd,dv,eac3,flac,flic,flv,gxf,h261,h263,h264,\
hevc,hnm,ifv,iff,ipmovie,ivf,kux,live_flv,lxf,m4v,matroska,mjpeg,mlp,mlv,mm,mov,mp3,mpc,mpc8,mpeg,mpegts,\
mpegtsraw,mpegvideo,mtv,mv,mxf,nsv,nut,nuv,obu,ogg,oma,paf,pmp,pva,r3d,rm,roq,smjpeg,smk,sox,tak,truehd,tta,ty,\
vc1,vc1test,vivo,voc,vqf,w64,wav,wc3movie,webm,wsvqa,wtv,wv,xmv,xwma,yop,yuv4mpegpipe";

/// Whoever reads through the loopback server may open nothing else.
pub(crate) const PROTOCOLS: &str = "http,tcp";

/// Asks `ffprobe` about `file`.
pub(crate) async fn facts(
    runner: &Runner,
    program: &Path,
    file: Arc<File>,
    size: u64,
) -> Result<Facts, ProbeError> {
    let program = program.to_owned();
    let finished = runner
        .run(file, move |url| arguments(&program, url))
        .await
        .map_err(unfinished)?;
    // The one sentence FFmpeg has for a duration that it made up.
    let estimated = finished
        .stderr
        .iter()
        .any(|line| line.contains("Estimating duration from bitrate"));
    if !finished.status.success() {
        let unknown = finished
            .stderr
            .iter()
            .any(|line| line.contains("Invalid data found") || line.contains("whitelist"));
        // It exits with 1 for what it could not open, and by a signal when something else is wrong.
        return Err(if unknown || finished.status.code() == Some(1) {
            NotMedia::UnknownFormat.into()
        } else {
            ProbeError::Failed {
                status: finished.status,
            }
        });
    }
    let mut facts = json::facts(&finished.stdout, size).map_err(ProbeError::Answer)?;
    if estimated && !facts.gaps.contains(&Gap::Duration) {
        facts.gaps.push(Gap::Duration);
    }
    Ok(facts)
}

fn arguments(program: &Path, url: &str) -> Spec {
    let mut spec = Spec::new(program);
    spec.args(["-hide_banner", "-v", "warning"])
        .args(["-protocol_whitelist", PROTOCOLS])
        .args(["-format_whitelist", FORMATS])
        .args(["-show_format", "-show_streams"])
        .args(["-of", "json=compact=1", "-i", url])
        .nice(10);
    spec
}

fn unfinished(unfinished: Unfinished) -> ProbeError {
    match unfinished {
        Unfinished::Spawn(error) => ProbeError::Ffprobe(error),
        Unfinished::TimedOut => ProbeError::TimedOut,
        Unfinished::TooMuchOutput => ProbeError::TooMuchOutput,
        Unfinished::Unreadable(error) => ProbeError::Unreadable(error),
        Unfinished::Loopback(error) => ProbeError::Loopback(error),
        Unfinished::Stopped => ProbeError::Stopped,
    }
}
