//! What a command line needs of FFmpeg, read from the command line itself, so that the two cannot drift.

use std::collections::BTreeSet;
use std::ffi::OsString;

use ether_encoder::{AudioAction, Protocol, Request, VideoAction, VideoCodec};
use ether_media::Container;

use super::{Kind, nameless};
use crate::plan;
use crate::strand::{RungSet, Strand};

/// Everything that some command lines need, by FFmpeg's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs(BTreeSet<(Kind, String)>);

/// What the picture of `request` is encoded to, where it is encoded.
pub(crate) fn encoded_as(request: &Request) -> Option<VideoCodec> {
    match &request.video.as_ref()?.action {
        VideoAction::Encode(encode) => Some(encode.codec),
        VideoAction::Copy => None,
    }
}

impl Needs {
    /// What every run of a `strand` that is given out by `protocol` needs, and the source's own container and codecs.
    /// A stream has one run; what has segments has one from its beginning, one from a seek, and one at its end, which
    /// may be silence.
    pub(crate) fn of(strand: &Strand, protocol: Protocol) -> Self {
        let mut needs = Self::default();
        needs.take_source(strand);
        if let Protocol::Http { start } = protocol {
            needs.take_line(&plan::progressive(strand, start, 0, nameless()).args);
            return needs;
        }
        let rungs = (0..strand.representations.len().clamp(1, 8)).map(RungSet::one);
        let rungs = rungs.fold(RungSet::default(), RungSet::with);
        let last = u32::try_from(strand.timeline.len().saturating_sub(1)).unwrap_or(u32::MAX);
        for first in BTreeSet::from([0, last.min(1), last]) {
            needs.take_line(&plan::plan(strand, rungs, first, 0, nameless()).args);
        }
        needs
    }

    /// What reading through a gateway needs.
    pub(crate) fn of_gateway() -> Self {
        let mut needs = Self::default();
        for protocol in ["http", "tcp"] {
            needs.add(Kind::Protocol, protocol);
        }
        needs
    }

    /// What `args` need.
    #[cfg(test)]
    pub(crate) fn of_line(args: &[OsString]) -> Self {
        let mut needs = Self::default();
        needs.take_line(args);
        needs
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Kind, String)> {
        self.0.iter()
    }

    fn add(&mut self, kind: Kind, name: impl Into<String>) {
        self.0.insert((kind, name.into()));
    }

    fn take_line(&mut self, args: &[OsString]) {
        let mut words = args.iter().map(|word| word.to_string_lossy());
        let mut format: Option<String> = None;
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix('-') else {
                // Only the output stands without an option before it.
                self.take_url(&word);
                if let Some(format) = format.take() {
                    self.add(Kind::Muxer, format);
                }
                continue;
            };
            let option = option.split(':').next().unwrap_or_default();
            match option {
                "i" => {
                    let url = words.next().unwrap_or_default();
                    match format.take() {
                        Some(device) if device == "lavfi" => {
                            self.add(Kind::Demuxer, device);
                            self.take_graph(&url);
                        }
                        Some(format) => {
                            self.add(Kind::Demuxer, format);
                            self.take_url(&url);
                        }
                        None => self.take_url(&url),
                    }
                }
                "f" => format = words.next().map(|name| name.into_owned()),
                "c" | "codec" => match words.next() {
                    Some(name) if name != "copy" => self.add(Kind::Encoder, name),
                    _ => {}
                },
                "filter_complex" | "af" | "vf" | "filter" => {
                    let graph = words.next().unwrap_or_default();
                    self.take_graph(&graph);
                }
                "bsf" => {
                    let chain = words.next().unwrap_or_default();
                    for filter in filters(&chain) {
                        self.add(
                            Kind::BitstreamFilter,
                            filter.split('=').next().unwrap_or_default(),
                        );
                    }
                }
                "hwaccel" => {
                    let name = words.next().unwrap_or_default();
                    self.add(Kind::Hwaccel, name);
                }
                "init_hw_device" => {
                    let device = words.next().unwrap_or_default();
                    let kind = device.split(['=', ':', '@']).next().unwrap_or_default();
                    self.add(Kind::Hwaccel, kind);
                }
                "pix_fmt" => {
                    let name = words.next().unwrap_or_default();
                    self.add(Kind::PixelFormat, name);
                }
                flag if FLAGS.contains(&flag) => {}
                _ => {
                    words.next();
                }
            }
        }
    }

    fn take_url(&mut self, url: &str) {
        if let Some((protocol, _)) = url.split_once(':') {
            self.add(Kind::Protocol, protocol);
        }
    }

    /// Filters of a graph, and the pixel formats that its `format` filters name.
    fn take_graph(&mut self, graph: &str) {
        for filter in filters(graph) {
            let (name, options) = filter.split_once('=').unwrap_or((&filter, ""));
            let name = name.split('@').next().unwrap_or_default();
            if name.is_empty() {
                continue;
            }
            self.add(Kind::Filter, name);
            if name == "format" {
                let formats = options.strip_prefix("pix_fmts=").unwrap_or(options);
                for format in formats.split(':').next().unwrap_or_default().split('|') {
                    self.add(Kind::PixelFormat, format);
                }
            }
        }
    }

    fn take_source(&mut self, strand: &Strand) {
        let demuxer = match &strand.facts.container {
            Container::Mp4 => "mov",
            Container::Matroska => "matroska",
            Container::Webm => "webm",
            Container::MpegTs => "mpegts",
            Container::Other(name) => name,
        };
        self.add(Kind::Demuxer, demuxer);
        let picture = strand
            .encode()
            .and(strand.video.as_ref())
            .map(|video| video.stream);
        let sound = strand
            .audio
            .as_ref()
            .filter(|a| matches!(a.action, AudioAction::Encode(_)));
        for stream in picture.into_iter().chain(sound.map(|audio| audio.stream)) {
            if let Some(stream) = strand.facts.stream(stream) {
                self.add(Kind::Decoder, stream.codec.as_str());
            }
        }
    }
}

/// Options of our command lines that take no value.
const FLAGS: [&str; 11] = [
    "hide_banner",
    "nostdin",
    "nostats",
    "noaccurate_seek",
    "noautorotate",
    "copyts",
    "sn",
    "dn",
    "an",
    "vn",
    "y",
];

/// The filters of a graph, each as it stands there, without the names of its pads.
fn filters(graph: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut quoted = false;
    let mut pad = false;
    let mut chars = graph.chars();
    while let Some(c) = chars.next() {
        let last = found.len() - 1;
        match c {
            '\'' => quoted = !quoted,
            _ if quoted => found[last].push(c),
            '\\' => found[last].extend(chars.next()),
            // A pad's name stands where a filter begins or ends; brackets elsewhere belong to a value.
            '[' => pad = true,
            ']' if pad => pad = false,
            _ if pad => {}
            ',' | ';' => found.push(String::new()),
            _ => found[last].push(c),
        }
    }
    found.retain(|filter| !filter.trim().is_empty());
    found.into_iter().map(|filter| filter.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_taken_apart_with_their_pads_quotes_and_escapes() {
        let graph = r"[0:1]format=nv12|vaapi,hwupload,split=2[s0][s1];[s0]subtitles=filename='a,b;c\\[x]':si=1,scale_vaapi=w=2[v0];[s1]drawtext@two=text=a\,b[v1]";
        let names: Vec<String> = filters(graph)
            .iter()
            .map(|filter| filter.split(['=', '@']).next().unwrap().to_owned())
            .collect();
        let expected = [
            "format",
            "hwupload",
            "split",
            "subtitles",
            "scale_vaapi",
            "drawtext",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_line_tells_everything_that_it_uses() {
        let line = "-hide_banner -init_hw_device vaapi=gpu:/dev/dri/renderD128 -hwaccel vaapi -copyts -i file:x.mkv -f lavfi -i anullsrc=r=48000 -filter_complex [0:0]format=p010le|vaapi,hwupload[v0] -map [v0] -sn -dn -c:v hevc_vaapi -level:v:0 93 -c:a copy -bsf:a aac_adtstoasc -f mp4 pipe:1";
        let line: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let needs = Needs::of_line(&line);
        let expected = [
            (Kind::Encoder, "hevc_vaapi"),
            (Kind::Filter, "anullsrc"),
            (Kind::Filter, "format"),
            (Kind::Filter, "hwupload"),
            (Kind::Muxer, "mp4"),
            (Kind::Demuxer, "lavfi"),
            (Kind::BitstreamFilter, "aac_adtstoasc"),
            (Kind::Protocol, "file"),
            (Kind::Protocol, "pipe"),
            (Kind::Hwaccel, "vaapi"),
            (Kind::PixelFormat, "p010le"),
            (Kind::PixelFormat, "vaapi"),
        ];
        let expected: BTreeSet<(Kind, String)> = expected
            .iter()
            .map(|(kind, name)| (*kind, (*name).to_owned()))
            .collect();
        assert_eq!(needs.0, expected);
    }
}
