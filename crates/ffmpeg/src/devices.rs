//! Which device encodes, and what became of devices while they were used.
//!
//! The choice is pure over three things: what was found out by trial, what happened since, and what the owner
//! wants. A device that takes no further session is passed over for a while: that is want of capacity. One under
//! which a run failed is passed over until a new trial, which starts at once, has proved it again: a trial needs
//! neither disk nor film, so it says whose fault it was. A film that failed on a device is left to others for an
//! hour, and a device on which several did, in its own words, for as long. Nothing is held against it for ever.

mod fault;
mod record;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ether_encoder::{
    Choice, ChoiceReason, Device, DeviceCounts, Refusal, Rejection, Request, Share, Unsupported, VideoCodec,
};
use ether_media::Facts;
use ether_process::Spawner;
use ether_types::Clock;
use tokio::task::JoinSet;

use crate::inventory::{Inventory, Verdict, encoded_as, try_device};
use crate::plan;
use crate::strand::Strand;
pub(crate) use fault::Fault;
use record::Record;

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

/// What speaks against a device, whatever its trial said.
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
    let met = trouble.iter().find(|t| t.device == device && t.codec == codec);
    if let Some(met) = met {
        return Some(met.why.clone());
    }
    match verdict {
        Verdict::Works => {}
        Verdict::Failed { said } => return Some(Rejection::Trial { said: said.clone() }),
        Verdict::OtherConfiguration => return Some(Rejection::OtherConfiguration),
        Verdict::Full => return Some(Rejection::Full),
        Verdict::Unknown => return Some(Rejection::Unknown),
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

/// The devices of this machine and what became of them.
pub(crate) struct Devices {
    spawner: Spawner,
    clock: Arc<dyn Clock>,
    wish: HardwareWish,
    state: Mutex<State>,
    /// New trials of devices; they end by themselves within seconds.
    trials: Mutex<JoinSet<()>>,
}

struct State {
    /// What is known by trial, replaced by what newer trials say.
    inventory: Arc<Inventory>,
    /// The same with every success that there ever was.
    ever: Arc<Inventory>,
    record: Record,
    counts: DeviceCounts,
}

impl Devices {
    pub(crate) fn new(
        inventory: Inventory,
        spawner: Spawner,
        clock: Arc<dyn Clock>,
        wish: HardwareWish,
    ) -> Arc<Self> {
        let record = Record::begin(&inventory.trials, clock.monotonic());
        let inventory = Arc::new(inventory);
        let state = State {
            record,
            ever: inventory.clone(),
            inventory,
            counts: DeviceCounts::default(),
        };
        Arc::new(Self {
            spawner,
            clock,
            wish,
            state: Mutex::new(state),
            trials: Mutex::default(),
        })
    }

    /// What is known by now.
    pub(crate) fn inventory(&self) -> Arc<Inventory> {
        self.lock().inventory.clone()
    }

    /// Whether `request` can be started. One for a device that was lost after it had been chosen can: it fails in the
    /// way that makes its viewer choose again.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub(crate) fn supports(&self, request: &Request) -> Result<(), Unsupported> {
        let ever = self.lock().ever.clone();
        ever.supports(request)
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.inventory().program().to_owned()
    }

    pub(crate) fn choose(&self, request: &Request) -> Choice {
        let trouble = self.trouble(&request.facts);
        choose(request, &self.inventory(), &trouble, self.wish)
    }

    pub(crate) fn counts(&self) -> DeviceCounts {
        self.lock().counts
    }

    /// Devices that are passed over now for a film with these `facts`, and why.
    pub(crate) fn trouble(&self, facts: &Arc<Facts>) -> Vec<Trouble> {
        let now = self.clock.monotonic();
        self.lock().record.trouble(facts, now)
    }

    /// Counts an execution of `request`, and tries devices anew that could have had it and whose time has come.
    pub(crate) fn started(self: &Arc<Self>, request: &Request) {
        let Some(codec) = encoded_as(request) else { return };
        let trouble = self.trouble(&request.facts);
        let fallen = trouble
            .iter()
            .any(|t| t.codec == codec && self.wish.allows(t.device));
        let due = {
            let mut state = self.lock();
            let counts = &mut state.counts;
            if request.device().is_hardware() {
                counts.hardware += 1;
            } else {
                counts.software += 1;
                counts.fallbacks += u64::from(fallen);
            }
            let now = self.clock.monotonic();
            state.record.due(codec, now)
        };
        for device in due.into_iter().filter(|device| self.wish.allows(*device)) {
            self.try_anew(device, codec);
        }
    }

    /// Takes in that a run of `device` on a film with these `facts` did not work, and says what that means for who
    /// waits for it.
    pub(crate) fn failed(
        self: &Arc<Self>,
        device: Device,
        codec: VideoCodec,
        facts: &Arc<Facts>,
        fault: Fault,
    ) -> Refusal {
        tracing::warn!(%device, ?fault, "a run on an encoding device did not work");
        let now = self.clock.monotonic();
        let mut state = self.lock();
        if fault == Fault::Full {
            state.counts.full += 1;
            state.record.full(device, codec, now);
            return Refusal::Device;
        }
        state.counts.failed += 1;
        state.record.failed(device, codec, facts, fault, now);
        drop(state);
        self.try_anew(device, codec);
        Refusal::DeviceLost
    }

    /// Tries a device unless that is under way.
    fn try_anew(self: &Arc<Self>, device: Device, codec: VideoCodec) {
        if !self.lock().record.begin_trial(device, codec) {
            return;
        }
        let devices = Arc::clone(self);
        let program = self.program();
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        while trials.try_join_next().is_some() {}
        trials.spawn(async move {
            loop {
                let verdict = try_device(&devices.spawner, &program, device, codec).await;
                tracing::info!(%device, ?verdict, "an encoding device was tried anew");
                let (wall, now) = (devices.clock.now(), devices.clock.monotonic());
                let mut state = devices.lock();
                Arc::make_mut(&mut state.inventory).learn(device, codec, &verdict, wall);
                if verdict == Verdict::Works {
                    Arc::make_mut(&mut state.ever).learn(device, codec, &verdict, wall);
                }
                if state.record.tried(device, codec, &verdict, now) {
                    break;
                }
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

#[cfg(test)]
mod tests;
