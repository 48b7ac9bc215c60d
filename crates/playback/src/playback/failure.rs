//! How the failure of an encoder is told: which film, what happened, what FFmpeg itself said, what mends it, and
//! what happens when it is asked for again.
//!
//! Players ask again at once when a part of a film is refused, and each time would start an encoder that fails
//! as the one before it. So three starts in a row for the same part are followed by a rest, whose length the
//! answer tells. Another part of the film is tried without one: damage has a place.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use ether_encoder::{Ended, Resource};
use ether_types::{Monotonic, Timestamp};

/// Starts in a row for the same part of a film before the encoder rests.
const TRIES: u32 = 3;
/// How long it rests.
const REST: Duration = Duration::from_secs(30);
/// Parts of which failures are remembered; the oldest is forgotten.
const PARTS: usize = 16;
/// Lines of FFmpeg's that are repeated, the newest, and the length of each.
const LINES: usize = 3;
const LINE: usize = 200;

/// One failure of an encoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When.
    pub at: Timestamp,
    /// The film's path below its folder.
    pub film: String,
    /// How the encoder ended.
    pub ended: Ended,
    /// FFmpeg's last words, without paths and addresses; may be empty.
    pub said: Vec<String>,
    /// How often in a row making this part failed.
    pub times: u32,
    /// For how long no encoder is started for this part.
    pub rests: Option<Duration>,
}

impl Failure {
    pub(crate) fn new(at: Timestamp, film: &str, ended: Ended, log: &[String]) -> Self {
        let said = log.iter().map(|line| plain(line)).filter(|line| !line.is_empty());
        let mut said: Vec<String> = said.collect();
        said.dedup();
        said.drain(..said.len().saturating_sub(LINES));
        // Of scratch and of the file FFmpeg knows nothing: its words would lead astray.
        let silent = matches!(
            ended,
            Ended::ScratchFull | Ended::SegmentTooLarge { .. } | Ended::SourceLost
        );
        Self {
            at,
            film: film.to_owned(),
            said: if silent { Vec::new() } else { said },
            ended,
            times: 1,
            rests: None,
        }
    }

    /// A short word for programs.
    pub fn code(&self) -> &'static str {
        EndedWords::of(&self.ended).code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = EndedWords::of(&self.ended);
        write!(f, "{}: {}", self.film, words.what)?;
        if !self.said.is_empty() {
            write!(f, ", and FFmpeg said: {}", self.said.join(" / "))?;
        }
        if let Some(mend) = &words.mend {
            write!(f, "; {mend}")?;
        }
        match self.rests {
            None => f.write_str(". Asking again starts another encoder"),
            Some(rests) => write!(
                f,
                ". It failed {} times in a row here, so none is started for this part for {} s; other parts of the film are tried at once",
                self.times,
                seconds(rests)
            ),
        }
    }
}

fn seconds(time: Duration) -> u128 {
    time.as_millis().div_ceil(1_000).max(1)
}

/// How the end of an encoder is told, whichever film it was about.
pub(crate) struct EndedWords {
    /// A short word for programs.
    pub(crate) code: &'static str,
    /// What happened.
    pub(crate) what: String,
    /// What to do about it, where anything is to be done.
    pub(crate) mend: Option<String>,
}

impl fmt::Display for EndedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.mend {
            Some(mend) => write!(f, ": {mend}"),
            None => Ok(()),
        }
    }
}

impl EndedWords {
    pub(crate) fn of(ended: &Ended) -> Self {
        let told = |code, what: String, mend: &str| Self {
            code,
            what,
            mend: Some(mend.to_owned()),
        };
        let quiet = |code, what: &str| Self {
            code,
            what: what.to_owned(),
            mend: None,
        };
        match ended {
            Ended::Complete => quiet("complete", "the encoder made everything"),
            Ended::Stopped => quiet("stopped", "the encoder was told to end"),
            Ended::SourceTruncated { at } => told(
                "source_truncated",
                format!("the file ends at {at} s: it is shorter than it says"),
                "what is there can be watched; copy the file anew for the rest",
            ),
            Ended::SourceChanged => told(
                "source_changed",
                "the file was replaced or rewritten while it was played".into(),
                "ask for a new session once it was scanned",
            ),
            Ended::SourceLost => told(
                "source_lost",
                "the file can no longer be read".into(),
                "see that its disk or share is mounted and that the server may read it",
            ),
            Ended::ScratchFull => told(
                "scratch_full",
                "the disk that holds scratch files is full".into(),
                "free some space on it, or start ether with --scratch-dir on a larger one",
            ),
            Ended::SegmentTooLarge { segment, scratch } => told(
                "segment_too_large",
                format!(
                    "segment {segment} alone is larger than the {} MiB of scratch space that there are for it",
                    scratch >> 20
                ),
                "start ether with a larger --scratch, or ask for shorter segments (`segmentSeconds`) or for the \
                 picture to be encoded (`video`: `encode`)",
            ),
            Ended::BoundViolated { segment } => told(
                "bound_violated",
                format!("the encoder did not start segment {segment} where it was to start"),
                "the film's index may be damaged: repackage it (ffmpeg -c copy), or ask for the picture to be \
                 encoded (`video`: `encode`)",
            ),
            Ended::ConfigurationChanged => told(
                "configuration_changed",
                "the encoder's configuration is no longer the one that the player has".into(),
                "ask for a new session",
            ),
            Ended::Unreadable => told(
                "output_unreadable",
                "the encoder's output cannot be understood".into(),
                "a part of the film may be damaged, and going on a little later may get past it",
            ),
            Ended::Stalled => told(
                "stalled",
                "the encoder made nothing for too long and was ended".into(),
                "see whether the film's disk answers and the machine has processor time left",
            ),
            Ended::Failed { status, signal } => told(
                "encoder_failed",
                match (status, signal) {
                    (Some(status), _) => format!("the encoder failed with exit status {status}"),
                    (None, Some(signal)) => format!("the encoder was ended by signal {signal}"),
                    (None, None) => "the encoder could not be started".into(),
                },
                match (status, signal) {
                    (Some(_), _) => {
                        "a part of the film may be damaged, and going on a little later may get past it; if every \
                         film fails, `ether doctor` looks for what FFmpeg lacks"
                    }
                    (None, Some(9)) => "the machine may be out of memory: see the kernel's log",
                    (None, _) => "`ether doctor` looks for what is wrong with FFmpeg",
                },
            ),
        }
    }
}

/// What failed of one playback, by the part of the film that was wanted; the stream as a whole is no part.
#[derive(Default)]
pub(crate) struct Failures {
    parts: VecDeque<Part>,
    newest: Option<Failure>,
}

struct Part {
    resource: Option<Resource>,
    failed_at: Monotonic,
    failure: Failure,
}

impl Failures {
    /// The failure that the newest request for media met with, unless one was served since.
    pub(crate) fn newest(&self) -> Option<&Failure> {
        self.newest.as_ref()
    }

    /// Takes in that making `resource` failed at `now`; the failure as it is told, with what happens next.
    pub(super) fn note(
        &mut self,
        resource: Option<Resource>,
        mut failure: Failure,
        now: Monotonic,
    ) -> Failure {
        let before = self.parts.iter().position(|part| part.resource == resource);
        if let Some(before) = before.and_then(|n| self.parts.remove(n)) {
            failure.times = before.failure.times.saturating_add(1);
        }
        failure.rests = (failure.times >= TRIES).then_some(REST);
        if self.parts.len() >= PARTS {
            self.parts.pop_front();
        }
        self.parts.push_back(Part {
            resource,
            failed_at: now,
            failure: failure.clone(),
        });
        self.newest = Some(failure.clone());
        failure
    }

    /// The failure that keeps `resource` from being tried again at `now`, with the rest that is left.
    pub(super) fn resting(&mut self, resource: Option<Resource>, now: Monotonic) -> Option<Failure> {
        let part = self.parts.iter().find(|part| part.resource == resource)?;
        let left = part
            .failure
            .rests?
            .checked_sub(now.saturating_since(part.failed_at))?;
        if left.is_zero() {
            return None;
        }
        let failure = Failure {
            rests: Some(left),
            ..part.failure.clone()
        };
        self.newest = Some(failure.clone());
        Some(failure)
    }

    /// Takes in that `resource` was served.
    pub(super) fn served(&mut self, resource: Option<Resource>) {
        self.parts.retain(|part| part.resource != resource);
        self.newest = None;
    }
}

/// A line of FFmpeg's without what is nobody's business: paths, addresses of the network and of memory. What is
/// quoted from a film may hold anything, so it is also bounded and has no control characters.
pub(crate) fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len().min(LINE));
    let mut rest = line;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        if out.len() >= LINE {
            out.push('…');
            break;
        }
        let hidden = if let Some(number) = rest.strip_prefix(" @ 0x") {
            Some(("", number.trim_start_matches(|c: char| c.is_ascii_hexdigit())))
        } else if let Some(scheme) = url(rest, before) {
            let end = scheme.find([' ', '\'', '"', '>', ')']).unwrap_or(scheme.len());
            Some(("<address>", &scheme[end..]))
        } else if path(rest, before) {
            Some(("<path>", after_path(rest, before)))
        } else {
            None
        };
        if let Some((shown, left)) = hidden {
            out.push_str(shown);
            before = '>';
            rest = left;
            continue;
        }
        out.push(if c.is_control() { ' ' } else { c });
        before = c;
        rest = &rest[c.len_utf8()..];
    }
    out.trim().to_owned()
}

/// What follows a scheme and `://`, where a word begins with one here.
fn url(rest: &str, before: char) -> Option<&str> {
    if before.is_alphanumeric() {
        return None;
    }
    let scheme = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+.-".contains(c))?;
    (scheme > 0).then(|| rest[scheme..].strip_prefix("://"))?
}

/// Whether an absolute path begins here, `file:` or not.
fn path(rest: &str, before: char) -> bool {
    let mut next = rest.chars();
    let inside = before.is_alphanumeric() || "/._-<>)]".contains(before);
    next.next() == Some('/') && !inside && next.next().is_some_and(|c| !c.is_whitespace() && c != '/')
}

/// What follows a path: names may hold blanks, so only a colon with a blank, or the quote that it stands in, ends
/// one for sure.
fn after_path(rest: &str, before: char) -> &str {
    let end = match before {
        '\'' | '"' => rest.find(before),
        _ => rest.find(": "),
    };
    &rest[end.unwrap_or(rest.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(number: u32) -> Option<Resource> {
        Some(Resource::Segment {
            representation: 0,
            number,
        })
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn failure() -> Failure {
        let ended = Ended::Failed {
            status: Some(1),
            signal: None,
        };
        let log = [
            "[h264 @ 0x55d0] no frame!".to_owned(),
            "Conversion failed!".to_owned(),
        ];
        Failure::new(Timestamp::from_micros(1), "sub/A film.mkv", ended, &log)
    }

    #[test]
    fn a_failure_names_the_film_the_cause_the_mend_and_what_comes_next() {
        let told = failure().to_string();
        for word in [
            "sub/A film.mkv",
            "exit status 1",
            "[h264] no frame! / Conversion failed!",
            "later",
            "starts another",
        ] {
            assert!(told.contains(word), "{word:?} is not in {told:?}");
        }
    }

    #[test]
    fn three_failures_in_a_row_for_one_part_are_followed_by_a_rest_for_it_alone() {
        let mut failures = Failures::default();
        for times in 1..=3 {
            assert_eq!(failures.resting(segment(4), at(0)), None);
            let told = failures.note(segment(4), failure(), at(0));
            assert_eq!((told.times, told.rests.is_some()), (times, times == 3));
        }
        let resting = failures.resting(segment(4), at(10)).unwrap();
        assert_eq!(resting.rests, Some(Duration::from_secs(20)));
        assert!(resting.to_string().contains("for 20 s"), "{resting}");
        assert_eq!(failures.resting(segment(5), at(10)), None);
        // After the rest one start is tried, and the rest begins anew.
        assert_eq!(failures.resting(segment(4), at(30)), None);
        assert!(failures.note(segment(4), failure(), at(31)).rests.is_some());
        failures.served(segment(4));
        assert_eq!(failures.newest(), None);
        assert_eq!(failures.resting(segment(4), at(32)), None);
        assert_eq!(failures.note(segment(4), failure(), at(33)).times, 1);
    }

    #[test]
    fn last_words_keep_their_sense_and_lose_paths_and_addresses() {
        for (line, shown) in [
            (
                "[h264 @ 0x55d0c8a1] error while decoding MB 3 4",
                "[h264] error while decoding MB 3 4",
            ),
            (
                "Failed to open /srv/My films/x y.srt: Permission denied",
                "Failed to open <path>: Permission denied",
            ),
            ("file:/srv/secret", "file:<path>"),
            ("cannot load '/usr/lib/x.so' now", "cannot load '<path>' now"),
            (
                "report to https://user:pass@host/q?grant=abc now",
                "report to <address> now",
            ),
            ("30/1 fps, 4:3, yuv420p/limited", "30/1 fps, 4:3, yuv420p/limited"),
            ("bell\u{7} and\ttab", "bell  and tab"),
        ] {
            assert_eq!(plain(line), shown);
        }
        assert!(plain(&"x".repeat(10_000)).len() < 300);
    }

    #[test]
    fn what_is_remembered_of_failures_is_bounded() {
        let mut failures = Failures::default();
        for number in 0..1_000 {
            failures.note(segment(number), failure(), at(0));
        }
        assert_eq!(failures.parts.len(), PARTS);
    }
}
