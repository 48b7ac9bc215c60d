//! The life of one playback's execution, as a pure state machine: events in, acts out, no clock, no IO.
//!
//! ```text
//!            want                 reserved              started
//!   Empty ─────────▶ Reserving ─────────────▶ Starting ─────────▶ Live
//!     ▲  │  want while  │ refused, or nobody     │ failed           │ idle, lost
//!     │  │  one retires │ waits any more         ▼                  ▼
//!     │  └─▶ Succeeding ┴──────────────▶ Empty   Empty + retiring   Empty + retiring
//!     └── proved, or waited long enough ◀─┘
//! ```
//!
//! Sealing is possible in every state and final. An execution that was told to end is counted in `retiring`
//! until its end is proved, whatever else happens; its successor waits for that proof for a while, so that
//! two encoders for one playback are the exception and not the rule (D16).

use std::time::Duration;

use ether_types::Monotonic;
use serde::Serialize;

/// How long things may last. Every one of them is a bound that viewers and owners are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeLimits {
    /// A playing viewer who asks for nothing for this long has gone away.
    pub idle: Duration,
    /// A paused viewer who asks for nothing for this long has gone away.
    pub paused: Duration,
    /// How long a successor waits for proof that its predecessor ended.
    pub succession: Duration,
}

impl Default for LifeLimits {
    fn default() -> Self {
        Self {
            idle: Duration::from_secs(60),
            paused: Duration::from_secs(30 * 60),
            succession: Duration::from_secs(5),
        }
    }
}

/// What the viewer says it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ViewerState {
    /// Watching.
    #[default]
    Playing,
    /// Paused; the place is kept longer.
    Paused,
}

/// Why a playback ended for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The viewer or the owner stopped it.
    #[error("it was stopped")]
    Stopped,
    /// Its time is over.
    #[error("its time is over")]
    Expired,
    /// The file was replaced or rewritten while it was played.
    #[error("the file was changed while it was played")]
    SourceChanged,
    /// It was idle for long and made room for another.
    #[error("it was idle and made room for another session")]
    Displaced,
    /// The server is stopping.
    #[error("the server is stopping")]
    Shutdown,
}

/// Where the playback's execution stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Slot {
    /// There is none; nothing is charged.
    Empty,
    /// Wanted, and waiting for its predecessor's proof.
    Succeeding,
    /// Waiting for capacity.
    Reserving,
    /// Capacity is taken and the encoder was asked.
    Starting,
    /// It serves.
    Live,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Somebody asked for media.
    Want,
    /// Capacity was taken; `wanted` says whether anybody still waits for it.
    Reserved { wanted: bool },
    /// Capacity was refused.
    Refused,
    /// The encoder answered; the execution exists either way.
    Started { usable: bool },
    /// The execution says that it has ended, though nobody here told it to.
    Lost,
    /// One retirement was proved.
    Proved,
    /// Time passed; `idle_since` is when the viewer last asked for anything, absent while it is being served.
    Tick { idle_since: Option<Monotonic> },
    /// The playback ends for good.
    Seal(EndReason),
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Ask for capacity.
    Reserve,
    /// Leave the queue for capacity.
    Withdraw,
    /// Ask the encoder to start on the capacity that was taken.
    Start,
    /// Give back capacity that was never used.
    GiveBack,
    /// Tell everybody who waits that the execution serves.
    Serve,
    /// Tell everybody who waits why it does not.
    TurnAway,
    /// End the execution and await the proof.
    Retire,
}

/// The state.
#[derive(Clone, Debug)]
pub(crate) struct Lifecycle {
    limits: LifeLimits,
    expires: Monotonic,
    slot: Slot,
    retiring: u32,
    /// When the newest retirement began.
    retired_at: Monotonic,
    viewer: ViewerState,
    sealed: Option<EndReason>,
}

impl Lifecycle {
    pub(crate) fn new(limits: LifeLimits, expires: Monotonic) -> Self {
        Self {
            limits,
            expires,
            slot: Slot::Empty,
            retiring: 0,
            retired_at: Monotonic::from_origin(Duration::ZERO),
            viewer: ViewerState::Playing,
            sealed: None,
        }
    }

    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    pub(crate) fn sealed(&self) -> Option<EndReason> {
        self.sealed
    }

    pub(crate) fn set_viewer(&mut self, viewer: ViewerState) {
        self.viewer = viewer;
    }

    /// Whether nothing is left to do: sealed, and every execution proved ended.
    pub(crate) fn done(&self) -> bool {
        self.sealed.is_some() && self.slot == Slot::Empty && self.retiring == 0
    }

    /// When the next [`Event::Tick`] is due, if the viewer asks for nothing until then.
    pub(crate) fn deadline(&self, idle_since: Option<Monotonic>) -> Option<Monotonic> {
        if self.sealed.is_some() {
            return None;
        }
        let own = match self.slot {
            Slot::Live => idle_since.map(|since| since.saturating_add(self.patience())),
            Slot::Succeeding => Some(self.retired_at.saturating_add(self.limits.succession)),
            Slot::Empty | Slot::Reserving | Slot::Starting => None,
        };
        own.map_or(Some(self.expires), |own| Some(own.min(self.expires)))
    }

    fn patience(&self) -> Duration {
        match self.viewer {
            ViewerState::Playing => self.limits.idle,
            ViewerState::Paused => self.limits.paused,
        }
    }

    /// Takes `event` in at `now` and says what is to be done, in order.
    pub(crate) fn on(&mut self, event: Event, now: Monotonic) -> Vec<Act> {
        let acts = self.decide(event, now);
        debug_assert!(
            self.sealed.is_none() || !acts.contains(&Act::Reserve) && !acts.contains(&Act::Start),
            "a sealed playback starts nothing"
        );
        acts
    }

    fn decide(&mut self, event: Event, now: Monotonic) -> Vec<Act> {
        match event {
            Event::Want if self.sealed.is_some() => vec![Act::TurnAway],
            Event::Want => match self.slot {
                Slot::Live => vec![Act::Serve],
                Slot::Succeeding | Slot::Reserving | Slot::Starting => vec![],
                Slot::Empty if self.predecessor_may_yet_end(now) => {
                    self.become_slot(Slot::Succeeding, vec![])
                }
                Slot::Empty => self.become_slot(Slot::Reserving, vec![Act::Reserve]),
            },
            Event::Reserved { wanted } => {
                if self.sealed.is_some() || !wanted {
                    self.become_slot(Slot::Empty, vec![Act::GiveBack])
                } else {
                    self.become_slot(Slot::Starting, vec![Act::Start])
                }
            }
            Event::Refused => self.become_slot(Slot::Empty, vec![Act::TurnAway]),
            Event::Started { usable } => {
                if self.sealed.is_some() || !usable {
                    let mut acts = self.retire(now);
                    acts.push(Act::TurnAway);
                    acts
                } else {
                    self.become_slot(Slot::Live, vec![Act::Serve])
                }
            }
            Event::Lost if self.slot == Slot::Live => self.retire(now),
            Event::Lost => vec![],
            Event::Proved => {
                self.retiring = self.retiring.saturating_sub(1);
                if self.slot == Slot::Succeeding && self.retiring == 0 {
                    self.become_slot(Slot::Reserving, vec![Act::Reserve])
                } else {
                    vec![]
                }
            }
            Event::Tick { .. } if self.sealed.is_some() => vec![],
            Event::Tick { .. } if now >= self.expires => self.seal(EndReason::Expired, now),
            Event::Tick { idle_since } => match self.slot {
                Slot::Live
                    if idle_since.is_some_and(|since| now >= since.saturating_add(self.patience())) =>
                {
                    self.retire(now)
                }
                Slot::Succeeding if !self.predecessor_may_yet_end(now) => {
                    self.become_slot(Slot::Reserving, vec![Act::Reserve])
                }
                _ => vec![],
            },
            Event::Seal(reason) => self.seal(reason, now),
        }
    }

    fn predecessor_may_yet_end(&self, now: Monotonic) -> bool {
        self.retiring > 0 && now < self.retired_at.saturating_add(self.limits.succession)
    }

    fn become_slot(&mut self, slot: Slot, acts: Vec<Act>) -> Vec<Act> {
        self.slot = slot;
        acts
    }

    fn retire(&mut self, now: Monotonic) -> Vec<Act> {
        self.slot = Slot::Empty;
        self.retiring += 1;
        self.retired_at = now;
        vec![Act::Retire]
    }

    fn seal(&mut self, reason: EndReason, now: Monotonic) -> Vec<Act> {
        if self.sealed.is_some() {
            return vec![];
        }
        self.sealed = Some(reason);
        match self.slot {
            Slot::Empty => vec![Act::TurnAway],
            Slot::Succeeding => self.become_slot(Slot::Empty, vec![Act::TurnAway]),
            Slot::Reserving => self.become_slot(Slot::Empty, vec![Act::Withdraw, Act::TurnAway]),
            // The encoder's answer comes, and with it the responsibility to retire what it names.
            Slot::Starting => vec![Act::TurnAway],
            Slot::Live => {
                let mut acts = self.retire(now);
                acts.push(Act::TurnAway);
                acts
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn fresh() -> Lifecycle {
        Lifecycle::new(LifeLimits::default(), at(10_000))
    }

    fn live() -> Lifecycle {
        let mut life = fresh();
        assert_eq!(life.on(Event::Want, at(0)), [Act::Reserve]);
        assert_eq!(life.on(Event::Reserved { wanted: true }, at(0)), [Act::Start]);
        assert_eq!(life.on(Event::Started { usable: true }, at(0)), [Act::Serve]);
        life
    }

    #[test]
    fn a_playback_that_nobody_watches_charges_nothing() {
        let life = fresh();
        assert_eq!(
            (life.slot(), life.deadline(Some(at(0)))),
            (Slot::Empty, Some(at(10_000)))
        );
    }

    #[test]
    fn an_idle_viewer_loses_the_encoder_and_not_the_playback() {
        let mut life = live();
        assert_eq!(life.deadline(Some(at(5))), Some(at(65)));
        assert_eq!(
            life.on(
                Event::Tick {
                    idle_since: Some(at(5))
                },
                at(64)
            ),
            []
        );
        assert_eq!(
            life.on(
                Event::Tick {
                    idle_since: Some(at(5))
                },
                at(65)
            ),
            [Act::Retire]
        );
        assert_eq!(life.on(Event::Proved, at(66)), []);
        assert_eq!(life.on(Event::Want, at(600)), [Act::Reserve]);
    }

    #[test]
    fn a_paused_viewer_is_waited_for_longer_and_one_being_served_for_ever() {
        let mut life = live();
        life.set_viewer(ViewerState::Paused);
        assert_eq!(life.deadline(Some(at(0))), Some(at(1_800)));
        assert_eq!(
            life.on(
                Event::Tick {
                    idle_since: Some(at(0))
                },
                at(600)
            ),
            []
        );
        assert_eq!(life.on(Event::Tick { idle_since: None }, at(5_000)), []);
        assert_eq!(
            life.on(
                Event::Tick {
                    idle_since: Some(at(0))
                },
                at(1_800)
            ),
            [Act::Retire]
        );
    }

    #[test]
    fn a_successor_waits_for_its_predecessors_proof_but_not_for_ever() {
        let mut life = live();
        assert_eq!(life.on(Event::Lost, at(10)), [Act::Retire]);
        assert_eq!(life.on(Event::Want, at(11)), []);
        assert_eq!(life.slot(), Slot::Succeeding);
        assert_eq!(life.deadline(None), Some(at(15)));
        let mut proved = life.clone();
        assert_eq!(proved.on(Event::Proved, at(12)), [Act::Reserve]);
        assert_eq!(life.on(Event::Tick { idle_since: None }, at(15)), [Act::Reserve]);
        assert!(!life.done());
    }

    #[test]
    fn a_seal_while_the_encoder_starts_still_retires_what_it_names() {
        let mut life = fresh();
        life.on(Event::Want, at(0));
        life.on(Event::Reserved { wanted: true }, at(0));
        assert_eq!(life.on(Event::Seal(EndReason::Stopped), at(1)), [Act::TurnAway]);
        assert!(!life.done());
        assert_eq!(
            life.on(Event::Started { usable: true }, at(2)),
            [Act::Retire, Act::TurnAway]
        );
        assert!(!life.done());
        life.on(Event::Proved, at(3));
        assert!(life.done());
    }

    #[test]
    fn capacity_that_nobody_waits_for_any_more_is_given_back_unused() {
        let mut life = fresh();
        life.on(Event::Want, at(0));
        assert_eq!(life.on(Event::Reserved { wanted: false }, at(1)), [Act::GiveBack]);
        assert_eq!(life.on(Event::Want, at(2)), [Act::Reserve]);
        assert_eq!(
            life.on(Event::Seal(EndReason::Stopped), at(3)),
            [Act::Withdraw, Act::TurnAway]
        );
        assert!(life.done());
    }

    /// What a shell holds, so that any order of events can be checked against what it implies.
    #[derive(Default)]
    struct World {
        queued: bool,
        charge: bool,
        starting: bool,
        live: bool,
        unproved: u32,
    }

    proptest! {
        /// Whatever happens in whatever order: nothing is charged twice, nothing charged is forgotten, and
        /// a sealed playback ends with nothing left.
        #[test]
        fn every_charge_is_given_back_or_retired(script in proptest::collection::vec(0..9_u8, 0..60)) {
            let mut life = fresh();
            let mut world = World::default();
            let mut now = 0_u64;
            let apply = |life: &mut Lifecycle, world: &mut World, event: Event, now: u64| {
                for act in life.on(event, at(now)) {
                    match act {
                        Act::Reserve => {
                            assert!(!world.queued && !world.charge);
                            world.queued = true;
                        }
                        Act::Withdraw => { assert!(world.queued); world.queued = false; }
                        Act::GiveBack => { assert!(world.charge && !world.live); world.charge = false; }
                        Act::Start => { assert!(world.charge); world.starting = true; }
                        Act::Retire => {
                            assert!(world.charge && !world.starting);
                            world.charge = false;
                            world.live = false;
                            world.unproved += 1;
                        }
                        Act::Serve => assert!(life.slot() == Slot::Live),
                        Act::TurnAway => {}
                    }
                }
            };
            let mut step = |life: &mut Lifecycle, world: &mut World, choice: u8| {
                now += 7;
                let event = match choice {
                    0 | 1 => Event::Want,
                    2 if world.queued => {
                        world.queued = false;
                        world.charge = true;
                        Event::Reserved { wanted: !now.is_multiple_of(3) }
                    }
                    3 if world.queued => { world.queued = false; Event::Refused }
                    4 if world.starting => {
                        world.starting = false;
                        world.live = true;
                        Event::Started { usable: !now.is_multiple_of(4) }
                    }
                    5 if world.live => Event::Lost,
                    6 if world.unproved > 0 => { world.unproved -= 1; Event::Proved }
                    7 => Event::Tick { idle_since: Some(at(now.saturating_sub(61))) },
                    8 if now.is_multiple_of(5) => Event::Seal(EndReason::Stopped),
                    _ => Event::Tick { idle_since: None },
                };
                apply(life, world, event, now);
            };
            for choice in script {
                step(&mut life, &mut world, choice);
            }
            for _ in 0..6 {
                for choice in [8, 2, 4, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6] {
                    step(&mut life, &mut world, choice);
                }
            }
            let mut last = life.clone();
            last.on(Event::Seal(EndReason::Stopped), at(9_000));
            if !world.queued && !world.starting && world.unproved == 0 && !world.live {
                prop_assert!(last.done());
            }
            prop_assert!(!world.charge || world.live || world.starting);
        }
    }
}
