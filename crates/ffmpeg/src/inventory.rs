//! What the installed FFmpeg and the devices of this machine can really do (T22).
//!
//! FFmpeg is asked for its lists and every device that is there encodes a few frames, within a second or two at
//! the first start. The answers are kept by the identity of FFmpeg's file and of the drivers, so that they are
//! asked again when either changes. What could not be found out stays unknown: local play tries it, work for
//! other machines is refused. Of what was kept only the gaps are asked for again, and a device that failed counts as
//! one after a few minutes: what it failed by may have been mended.

mod drivers;
mod lists;
mod needs;
mod trial;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ether_encoder::{Device, Request, Revision, Unsupported, VideoCodec};
use ether_process::Spawner;
use ether_types::{Clock, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::strand::Strand;
use drivers::Drivers;
pub use drivers::Machine;
pub use lists::{Kind, Presence};
use lists::{Lists, QUESTION, answer};
pub(crate) use needs::{Needs, encoded_as};
pub(crate) use trial::{FAILURE_STANDS, announced, deciding, try_device};
pub use trial::{Trial, Verdict};

/// Time that all questions and trials may take together (T22).
const ALL: Duration = Duration::from_secs(15);
/// Questions that are asked at the same time.
const AT_ONCE: usize = 2;
/// The oldest major version whose behaviour ether relies on.
pub const OLDEST_MAJOR: u32 = 5;

/// What one FFmpeg program can do on one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// The program's first line about itself.
    pub version: String,
    /// Major version, where the program names one; development builds may not.
    pub major: Option<u32>,
    /// What each device made of each codec, in the order in which they would be chosen.
    pub trials: Vec<Trial>,
    lists: Lists,
    /// The file that was asked.
    program: PathBuf,
    identity: Revision,
    drivers: Drivers,
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
    /// Asks `program`, within 15 s by `clock`. What it said before is read from `cache` where the same file was
    /// asked and the devices and drivers of this machine are the same.
    ///
    /// Cancelling ends the questions; the cache is then unchanged.
    ///
    /// # Errors
    /// [`InventoryError`] with what to do about it.
    pub async fn load(
        spawner: &Spawner,
        clock: &dyn Clock,
        program: &Path,
        cache: &Path,
    ) -> Result<Self, InventoryError> {
        Self::load_on(&Machine::default(), spawner, clock, program, cache).await
    }

    /// [`Inventory::load`] on a machine whose devices lie elsewhere.
    ///
    /// # Errors
    /// As there.
    pub async fn load_on(
        machine: &Machine,
        spawner: &Spawner,
        clock: &dyn Clock,
        program: &Path,
        cache: &Path,
    ) -> Result<Self, InventoryError> {
        let missing = || InventoryError::Missing {
            program: program.to_owned(),
        };
        let program = find(program).ok_or_else(missing)?;
        let metadata = tokio::fs::metadata(&program).await.map_err(|_| missing())?;
        let identity = Revision::of_metadata(&metadata);
        let looked = machine.clone();
        let drivers = tokio::task::spawn_blocking(move || looked.drivers()).await;
        let drivers = drivers.unwrap_or_default();
        let cached = tokio::fs::read(cache).await.ok();
        let cached = cached.and_then(|text| serde_json::from_slice::<Self>(&text).ok());
        let same =
            |known: &Self| known.program == program && known.identity == identity && known.drivers == drivers;
        let mut inventory = match cached.filter(same) {
            Some(known) => known,
            None => Self::unasked(spawner, program, identity, drivers).await?,
        }
        .checked()?;
        if inventory.has_gaps(clock.now()) {
            // Whatever is not answered when the time is over stays unknown.
            tokio::select! {
                biased;
                () = clock.sleep(ALL) => {}
                () = inventory.find_out(spawner, clock) => {}
            }
            if let Ok(text) = serde_json::to_vec(&inventory) {
                // A cache that cannot be written costs time at the next start and nothing else.
                let part = cache.with_extension("part");
                if tokio::fs::write(&part, text).await.is_ok() {
                    let _ = tokio::fs::rename(&part, cache).await;
                }
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

    /// Whether FFmpeg has something, by its own name for it.
    pub fn presence(&self, kind: Kind, name: &str) -> Presence {
        self.lists.presence(kind, name)
    }

    /// Questions that got no usable answer.
    pub fn unanswered(&self) -> Vec<Kind> {
        self.lists.unanswered()
    }

    /// What is known of `codec` on `device`.
    pub fn verdict(&self, device: Device, codec: VideoCodec) -> Option<&Verdict> {
        let found = self
            .trials
            .iter()
            .find(|trial| trial.device == device && trial.codec == codec);
        found.map(|trial| &trial.verdict)
    }

    /// An FFmpeg that has all that `requests` need, and devices that passed their trials.
    #[cfg(test)]
    pub(crate) fn with_all_for(requests: &[Request], trials: Vec<Trial>) -> Self {
        let mut lists = Lists::default();
        for request in requests {
            for strand in Strand::all(request) {
                for (kind, name) in Needs::of(&strand, request.protocol).iter() {
                    lists.add(*kind, name);
                }
            }
        }
        Self {
            version: "ffmpeg version made-up".to_owned(),
            major: None,
            trials,
            lists,
            program: find("ffmpeg".as_ref()).unwrap(),
            identity: Revision {
                size: 0,
                modified_nanos: 0,
                inode: 0,
                device: 0,
            },
            drivers: Drivers::default(),
        }
    }

    /// The same of another program.
    #[cfg(test)]
    pub(crate) fn of_program(self, program: Option<PathBuf>) -> Self {
        let program = program.unwrap_or(self.program);
        Self { program, ..self }
    }

    /// Takes something away from what is known to be there.
    #[cfg(test)]
    pub(crate) fn forget(&mut self, kind: Kind, name: &str) {
        self.lists.remove(kind, name);
    }

    /// Whether there is something to find out at `now`.
    fn has_gaps(&self, now: Timestamp) -> bool {
        !self.unanswered().is_empty() || self.trials.iter().any(|trial| trial.is_open(now))
    }

    /// Takes in that a device was tried anew. That it was full or did not answer in time says nothing against a
    /// success.
    pub(crate) fn learn(
        &mut self,
        device: Device,
        codec: VideoCodec,
        verdict: &Verdict,
        tried_at: Timestamp,
    ) {
        let known = self
            .trials
            .iter_mut()
            .find(|trial| trial.device == device && trial.codec == codec);
        let Some(known) = known else { return };
        let decides = !matches!(verdict, Verdict::Full | Verdict::Unknown);
        if decides || known.verdict != Verdict::Works {
            (known.verdict, known.tried_at) = (verdict.clone(), tried_at);
        }
    }

    /// An inventory of which nothing but the version is known.
    async fn unasked(
        spawner: &Spawner,
        program: PathBuf,
        identity: Revision,
        drivers: Drivers,
    ) -> Result<Self, InventoryError> {
        let version = lists::version(spawner, &program).await?;
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
        let candidates = drivers.candidates();
        let trials = candidates.iter().map(|(device, codec)| Trial {
            device: *device,
            codec: *codec,
            verdict: Verdict::Unknown,
            tried_at: Timestamp::from_micros(0),
        });
        Ok(Self {
            version,
            major,
            trials: trials.collect(),
            lists: Lists::default(),
            program,
            identity,
            drivers,
        })
    }

    /// Asks what is not answered and tries what is not decided; what becomes known is filled in as it comes.
    async fn find_out(&mut self, spawner: &Spawner, clock: &dyn Clock) {
        let mut questions = self.unanswered().into_iter();
        let mut asked = JoinSet::new();
        loop {
            while asked.len() < AT_ONCE
                && let Some(kind) = questions.next()
            {
                let (spawner, program) = (spawner.clone(), self.program.clone());
                asked.spawn(async move { (kind, answer(&spawner, &program, kind).await) });
            }
            match asked.join_next().await {
                None => break,
                Some(Ok((kind, Some(text)))) => self.lists.fill(kind, &text),
                Some(_) => {}
            }
        }
        for n in 0..self.trials.len() {
            if !self.trials[n].is_open(clock.now()) {
                continue;
            }
            let Trial { device, codec, .. } = self.trials[n];
            let name = crate::plan::codec::encoder_name(codec, device);
            self.trials[n].verdict = match self.presence(Kind::Encoder, name) {
                Presence::Absent => Verdict::Failed {
                    said: format!("this FFmpeg has no encoder {name}"),
                },
                _ => try_device(spawner, &self.program, device, codec).await,
            };
            self.trials[n].tried_at = clock.now();
        }
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

    /// Whether everything that `request` makes FFmpeg use is there, as far as is known: what is not known is
    /// tried.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub fn supports(&self, request: &Request) -> Result<(), Unsupported> {
        match self.judge(request) {
            Err(Unsupported::NotKnown { .. }) => Ok(()),
            judged => judged,
        }
    }

    /// Whether everything that `request` needs is known to be there, without which it is not taken from another
    /// machine. Whether it may cross at all is [`ether_encoder::admits_remote`].
    ///
    /// # Errors
    /// The first thing that is missing, else the first that is not known.
    pub fn admits_remote(&self, request: &Request) -> Result<(), Unsupported> {
        self.judge(request)
    }

    /// Whether a film can be read through a gateway instead of from a file.
    ///
    /// # Errors
    /// What is missing, or not known.
    pub(crate) fn reads_gateways(&self) -> Result<(), Unsupported> {
        self.judge_needs(&Needs::of_gateway())
    }

    /// What is missing before what is not known.
    fn judge(&self, request: &Request) -> Result<(), Unsupported> {
        let mut unknown = None;
        for strand in Strand::all(request) {
            match self.judge_needs(&Needs::of(&strand, request.protocol)) {
                Err(error @ Unsupported::NotKnown { .. }) => unknown = unknown.or(Some(error)),
                judged => judged?,
            }
        }
        let device = request.device();
        if let Some(codec) = encoded_as(request).filter(|_| device.is_hardware()) {
            let what = format!("a working {}", crate::plan::codec::encoder_name(codec, device));
            match self.verdict(device, codec) {
                Some(Verdict::Works) => {}
                Some(Verdict::Unknown) => unknown = unknown.or(Some(Unsupported::NotKnown { what })),
                _ => return Err(Unsupported::Missing { what }),
            }
        }
        unknown.map_or(Ok(()), Err)
    }

    /// The same for one command line.
    pub(crate) fn judge_needs(&self, needs: &Needs) -> Result<(), Unsupported> {
        let mut unknown = None;
        for (kind, name) in needs.iter() {
            let what = || format!("{kind} {name}");
            match self.presence(*kind, name) {
                Presence::Present => {}
                Presence::Absent => return Err(Unsupported::Missing { what: what() }),
                Presence::Unknown => {
                    unknown.get_or_insert_with(|| Unsupported::NotKnown { what: what() });
                }
            }
        }
        unknown.map_or(Ok(()), Err)
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

/// A name that no file has, for command lines that are only looked at.
pub(crate) fn nameless() -> &'static OsStr {
    OsStr::new("file:source")
}

#[cfg(test)]
mod tests;
