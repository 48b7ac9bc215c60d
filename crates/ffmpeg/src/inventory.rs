//! What the installed FFmpeg can do, asked once and kept by the identity of its file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ether_encoder::{AudioAction, AudioCodec, Request, Revision, Unsupported, VideoAction};
use ether_process::{Bounds, RunError, SpawnError, Spawner, Spec};
use serde::{Deserialize, Serialize};

/// Time that one question may take, and bytes that one answer may have (T22).
const QUESTION: Duration = Duration::from_secs(3);
const ANSWER: usize = 1 << 20;
/// How often the first question is asked where it is not answered in time: a disk that slept has woken by then.
const TRIES: u32 = 2;
/// The oldest major version whose behaviour ether relies on.
pub const OLDEST_MAJOR: u32 = 5;

/// What one FFmpeg program can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// The program's first line about itself.
    pub version: String,
    /// Major version, where the program names one; development builds may not.
    pub major: Option<u32>,
    /// Names of its encoders.
    pub encoders: BTreeSet<String>,
    /// Names of its filters.
    pub filters: BTreeSet<String>,
    /// The file that was asked.
    program: PathBuf,
    identity: Revision,
}

/// Why FFmpeg cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// There is no such program.
    #[error("{} is not there or cannot be run: install FFmpeg {OLDEST_MAJOR}.1 or later, or name it with --ffmpeg", program.display())]
    Missing {
        /// What was looked for.
        program: PathBuf,
    },
    /// It is older than what ether relies on.
    #[error("{} is FFmpeg {major}: ether needs {OLDEST_MAJOR}.1 or later; install that, or name it with --ffmpeg", program.display())]
    TooOld {
        /// The program.
        program: PathBuf,
        /// Its major version.
        major: u32,
    },
    /// It did not answer in time.
    #[error(
        "{} does not answer within {} s: the machine or its disk may be busy, then start again; or name another \
         with --ffmpeg",
        program.display(),
        QUESTION.as_secs()
    )]
    Slow {
        /// The program.
        program: PathBuf,
    },
    /// It gave no usable answer.
    #[error("{} does not answer as FFmpeg does: name FFmpeg {OLDEST_MAJOR}.1 or later with --ffmpeg, or install it", program.display())]
    NoAnswer {
        /// The program.
        program: PathBuf,
    },
}

impl Inventory {
    /// Asks `program`, or reads what it said before from `cache` where the same file was asked.
    ///
    /// Cancelling ends the questions; the cache is then unchanged.
    ///
    /// # Errors
    /// [`InventoryError`] with what to do about it.
    pub async fn load(spawner: &Spawner, program: &Path, cache: &Path) -> Result<Self, InventoryError> {
        let missing = || InventoryError::Missing {
            program: program.to_owned(),
        };
        let program = find(program).ok_or_else(missing)?;
        let metadata = tokio::fs::metadata(&program).await.map_err(|_| missing())?;
        let identity = crate::revision_of(&metadata);
        let cached = tokio::fs::read(cache).await.ok();
        let cached = cached.and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        if let Some(known) = cached.filter(|known| known.program == program && known.identity == identity) {
            return known.checked();
        }
        let inventory = Self::ask(spawner, program, identity).await?.checked()?;
        if let Ok(text) = serde_json::to_vec(&inventory) {
            // A cache that cannot be written costs time at the next start and nothing else.
            let part = cache.with_extension("part");
            if tokio::fs::write(&part, text).await.is_ok() {
                let _ = tokio::fs::rename(&part, cache).await;
            }
        }
        Ok(inventory)
    }

    /// The state of the program's file that was asked.
    pub fn identity(&self) -> Revision {
        self.identity
    }

    /// The program itself.
    pub fn program(&self) -> &Path {
        &self.program
    }

    async fn ask(spawner: &Spawner, program: PathBuf, identity: Revision) -> Result<Self, InventoryError> {
        let version = answer(spawner, &program, "-version").await?;
        let encoders = answer(spawner, &program, "-encoders").await?;
        let filters = answer(spawner, &program, "-filters").await?;
        let version = version.lines().next().unwrap_or_default().to_owned();
        let Some(rest) = version.strip_prefix("ffmpeg version ") else {
            return Err(InventoryError::NoAnswer { program });
        };
        let digits = rest
            .trim_start_matches('n')
            .split(|c: char| !c.is_ascii_digit())
            .next();
        let major = digits
            .and_then(|digits| digits.parse().ok())
            .filter(|major| *major < 100);
        Ok(Self {
            major,
            encoders: names(&encoders),
            filters: names(&filters),
            version,
            program,
            identity,
        })
    }

    fn checked(self) -> Result<Self, InventoryError> {
        match self.major {
            Some(major) if major < OLDEST_MAJOR => Err(InventoryError::TooOld {
                program: self.program,
                major,
            }),
            _ => Ok(self),
        }
    }

    /// Whether everything that `request` makes FFmpeg use is there.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub fn supports(&self, request: &Request) -> Result<(), Unsupported> {
        let mut encoders = Vec::new();
        let mut filters = Vec::new();
        if let Some(VideoAction::Encode(encode)) = request.video.as_ref().map(|v| &v.action) {
            encoders.push("libx264");
            filters.extend(["trim", "scale", "format", "setsar"]);
            if encode.deinterlace {
                filters.push("bwdif");
            }
        }
        for audio in &request.audio {
            let AudioAction::Encode(encode) = &audio.action else {
                continue;
            };
            encoders.push(match encode.codec {
                AudioCodec::Aac => "aac",
                AudioCodec::Opus => "libopus",
            });
            filters.extend(["aresample", "aformat", "apad", "atrim"]);
        }
        let lacks = |kind: &str, name: &str| Unsupported::Missing {
            what: format!("{kind} {name}"),
        };
        if let Some(name) = encoders.into_iter().find(|name| !self.encoders.contains(*name)) {
            return Err(lacks("encoder", name));
        }
        match filters.into_iter().find(|name| !self.filters.contains(*name)) {
            Some(name) => Err(lacks("filter", name)),
            None => Ok(()),
        }
    }
}

/// The program as a path to a file: a bare name is looked up where a shell would.
fn find(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return Some(program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

async fn answer(spawner: &Spawner, program: &Path, question: &str) -> Result<String, InventoryError> {
    let program = program.to_owned();
    let first = question == "-version";
    for _ in 0..if first { TRIES } else { 1 } {
        let mut spec = Spec::new(&program);
        if !first {
            spec.arg("-hide_banner");
        }
        spec.arg(question).stdout_pipe();
        let bounds = Bounds {
            stdin: None,
            max_output: ANSWER,
            deadline: QUESTION,
        };
        match spawner.run_bounded(spec, bounds).await {
            Ok(output) => return Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Err(RunError::Spawn(SpawnError::NotFound { .. } | SpawnError::NotExecutable { .. })) => {
                return Err(InventoryError::Missing { program });
            }
            Err(RunError::DeadlineExceeded { .. }) => {}
            Err(_) => return Err(InventoryError::NoAnswer { program }),
        }
    }
    Err(InventoryError::Slow { program })
}

/// The names in one of FFmpeg's lists: second words, after a word of marks. The explanations of the marks have
/// `=` there. How many marks there are differs between versions and lists.
fn names(list: &str) -> BTreeSet<String> {
    let mark = |word: &str| word.bytes().all(|b| b == b'.' || b.is_ascii_uppercase());
    let name = |line: &str| {
        let mut words = line.strip_prefix(' ')?.split_whitespace();
        let (marks, name) = (words.next()?, words.next()?);
        (mark(marks) && name != "=").then(|| name.to_owned())
    };
    list.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_either_form_are_read() {
        let list = "Filters:\n  T.. = Timeline support\n  | = Source or sink filter\n ... trim  V->V  Pick.\n T.C gblur V->V x\n";
        assert_eq!(names(list), ["gblur", "trim"].map(str::to_owned).into());
        let newer = "Filters:\n  T.. = Timeline\n  ------\n TS aap  AA->A  Apply.\n .. trim  V->V  Pick.\n";
        assert_eq!(names(newer), ["aap", "trim"].map(str::to_owned).into());
        let encoders = "Encoders:\n V..... = Video\n ------\n V....D libx264  H.264\n A....D aac  AAC\n";
        assert_eq!(names(encoders), ["aac", "libx264"].map(str::to_owned).into());
    }
}
