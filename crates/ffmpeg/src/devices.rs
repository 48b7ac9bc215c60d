//! Which device encodes, and what became of devices while they were used.
//!
//! The choice is pure over three things: what was found out by trial, what happened since, and what the owner
//! wants. A device that takes no further session is passed over for a while: that is want of capacity. One that
//! fails is passed over at once and tried anew: if it fails again, or keeps failing films, it stays lost until
//! the next start.

mod fault;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ether_encoder::{
    Choice, ChoiceReason, Device, Refusal, Rejection, Request, Share, Unsupported, VideoCodec,
};
use ether_process::Spawner;
use ether_types::{Clock, Monotonic};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::inventory::{Inventory, Verdict, encoded_as, try_device};
use crate::plan;
use crate::strand::Strand;
pub(crate) use fault::Fault;

/// How long a device is passed over that took no further session.
const FULL_FOR: Duration = Duration::from_secs(30);
/// Failures after which a device is lost although it passes its trial.
const STRIKES: u32 = 3;

/// Which devices the owner wants used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HardwareWish {
    /// Whatever has proved that it can.
    #[default]
    Auto,
    /// None.
    Off,
    /// VA-API.
    Vaapi,
    /// NVENC.
    Nvenc,
    /// Quick Sync.
    Qsv,
}

impl HardwareWish {
    fn allows(self, device: Device) -> bool {
        match self {
            Self::Auto => true,
            Self::Off => false,
            Self::Vaapi => matches!(device, Device::Vaapi { .. }),
            Self::Nvenc => matches!(device, Device::Nvenc { .. }),
            Self::Qsv => matches!(device, Device::Qsv { .. }),
        }
    }
}

/// What happened to a device since it was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub(crate) device: Device,
    pub(crate) codec: VideoCodec,
    pub(crate) why: Rejection,
}

/// What encodes the picture of `request`: the first device in the inventory's order that is wanted, proved,
/// without trouble, and able to do all of the request; else the processor. Pure.
pub(crate) fn choose(
    request: &Request,
    inventory: &Inventory,
    trouble: &[Trouble],
    wish: HardwareWish,
) -> Choice {
    let Some(codec) = encoded_as(request) else {
        return software(vec![ChoiceReason::NothingToEncode]);
    };
    if wish == HardwareWish::Off {
        return software(vec![ChoiceReason::HardwareOff, ChoiceReason::Software]);
    }
    let mut reasons = Vec::new();
    let candidates = inventory
        .trials
        .iter()
        .filter(|trial| trial.codec == codec && wish.allows(trial.device));
    for trial in candidates {
        let device = trial.device;
        match rejection(request, inventory, trouble, device, codec, &trial.verdict) {
            None => {
                reasons.push(ChoiceReason::Proved);
                let strands = Strand::all(&request.on(device));
                let share = strands.first().map(plan::codec::share).unwrap_or_default();
                return Choice {
                    device,
                    share,
                    reasons,
                };
            }
            Some(why) => reasons.push(ChoiceReason::Rejected {
                rejected: device,
                why,
            }),
        }
    }
    if reasons.is_empty() {
        reasons.push(ChoiceReason::NoDevice);
    }
    reasons.push(ChoiceReason::Software);
    software(reasons)
}

fn software(reasons: Vec<ChoiceReason>) -> Choice {
    Choice {
        device: Device::Software,
        share: Share::Nothing,
        reasons,
    }
}

/// What speaks against `device`, where anything does.
fn rejection(
    request: &Request,
    inventory: &Inventory,
    trouble: &[Trouble],
    device: Device,
    codec: VideoCodec,
    verdict: &Verdict,
) -> Option<Rejection> {
    match verdict {
        Verdict::Works => {}
        Verdict::Failed { said } => return Some(Rejection::Trial { said: said.clone() }),
        Verdict::OtherConfiguration => return Some(Rejection::OtherConfiguration),
        Verdict::Unknown => return Some(Rejection::Unknown),
    }
    let met = trouble.iter().find(|t| t.device == device && t.codec == codec);
    if let Some(met) = met {
        return Some(met.why.clone());
    }
    // Only what is known to be there is relied on: the processor is always at hand.
    match inventory.admits_remote(&request.on(device)) {
        Ok(()) => None,
        Err(Unsupported::Missing { what } | Unsupported::NotKnown { what }) => {
            Some(Rejection::Lacks { what })
        }
        Err(other) => Some(Rejection::Lacks {
            what: other.to_string(),
        }),
    }
}

/// How often what happened, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceCounts {
    /// Executions that a device was to encode for.
    pub hardware: u64,
    /// Executions that the processor was to encode for.
    pub software: u64,
    /// Of those, how many had a device passed over that has proved itself before.
    pub fallbacks: u64,
    /// Runs that a device took no session for.
    pub full: u64,
    /// Runs that a device failed.
    pub failed: u64,
}

/// The devices of this machine and what became of them.
pub(crate) struct Devices {
    pub(crate) inventory: Inventory,
    spawner: Spawner,
    clock: Arc<dyn Clock>,
    wish: HardwareWish,
    state: Mutex<State>,
    /// New trials of devices that failed; they end by themselves within seconds.
    trials: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct State {
    known: Vec<Known>,
    counts: DeviceCounts,
}

/// What happened to one device with one codec.
struct Known {
    device: Device,
    codec: VideoCodec,
    full_until: Option<Monotonic>,
    lost: Option<String>,
    strikes: u32,
}

impl Devices {
    pub(crate) fn new(
        inventory: Inventory,
        spawner: Spawner,
        clock: Arc<dyn Clock>,
        wish: HardwareWish,
    ) -> Arc<Self> {
        Arc::new(Self {
            inventory,
            spawner,
            clock,
            wish,
            state: Mutex::default(),
            trials: Mutex::default(),
        })
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.inventory.program().to_owned()
    }

    pub(crate) fn choose(&self, request: &Request) -> Choice {
        choose(request, &self.inventory, &self.trouble(), self.wish)
    }

    pub(crate) fn counts(&self) -> DeviceCounts {
        self.lock().counts
    }

    /// Devices that are passed over now, and why.
    pub(crate) fn trouble(&self) -> Vec<Trouble> {
        let now = self.clock.monotonic();
        let state = self.lock();
        let why = |known: &Known| match (&known.lost, known.full_until) {
            (Some(said), _) => Some(Rejection::Lost { said: said.clone() }),
            (None, Some(until)) if now < until => Some(Rejection::Full),
            _ => None,
        };
        let trouble = |known: &Known| {
            let (device, codec) = (known.device, known.codec);
            why(known).map(|why| Trouble { device, codec, why })
        };
        state.known.iter().filter_map(trouble).collect()
    }

    /// Counts an execution of `request`.
    pub(crate) fn started(&self, request: &Request) {
        let Some(codec) = encoded_as(request) else { return };
        let fallen = self
            .trouble()
            .iter()
            .any(|t| t.codec == codec && self.wish.allows(t.device));
        let counts = &mut self.lock().counts;
        if request.device().is_hardware() {
            counts.hardware += 1;
        } else {
            counts.software += 1;
            counts.fallbacks += u64::from(fallen);
        }
    }

    /// Takes in that a run of `device` did not work, and says what that means for who waits for it.
    pub(crate) fn failed(self: &Arc<Self>, device: Device, codec: VideoCodec, fault: Fault) -> Refusal {
        tracing::warn!(%device, ?fault, "an encoding device did not work");
        let until = self.clock.monotonic().saturating_add(FULL_FOR);
        let mut state = self.lock();
        let known = state.known(device, codec);
        match fault {
            Fault::Full => {
                known.full_until = Some(until);
                state.counts.full += 1;
                Refusal::Device
            }
            Fault::Failed { said } => {
                known.lost = Some(said);
                known.strikes += 1;
                let again = known.strikes < STRIKES;
                state.counts.failed += 1;
                drop(state);
                if again {
                    self.try_again(device, codec);
                }
                Refusal::DeviceLost
            }
        }
    }

    /// Tries a device anew that failed: where it works, the film may have been at fault.
    fn try_again(self: &Arc<Self>, device: Device, codec: VideoCodec) {
        let devices = Arc::clone(self);
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        while trials.try_join_next().is_some() {}
        trials.spawn(async move {
            let verdict = try_device(&devices.spawner, devices.inventory.program(), device, codec).await;
            tracing::info!(%device, ?verdict, "an encoding device that failed was tried anew");
            let mut state = devices.lock();
            let known = state.known(device, codec);
            match verdict {
                Verdict::Works if known.strikes < STRIKES => known.lost = None,
                Verdict::Failed { said } => known.lost = Some(said),
                _ => {}
            }
        });
    }

    /// Waits for trials that are under way. Cancelling stops the waiting and nothing else.
    pub(crate) async fn join(&self) {
        loop {
            let mut trials = std::mem::take(&mut *self.trials.lock().unwrap_or_else(PoisonError::into_inner));
            if trials.is_empty() {
                return;
            }
            while trials.join_next().await.is_some() {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn known(&mut self, device: Device, codec: VideoCodec) -> &mut Known {
        let found = self
            .known
            .iter()
            .position(|k| k.device == device && k.codec == codec);
        let at = found.unwrap_or_else(|| {
            self.known.push(Known {
                device,
                codec,
                full_until: None,
                lost: None,
                strikes: 0,
            });
            self.known.len() - 1
        });
        &mut self.known[at]
    }
}

#[cfg(test)]
mod tests;
