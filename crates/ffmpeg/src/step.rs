//! What an execution's supervisor does next. Pure, so that every race between viewers can be driven by a test.

use std::time::Duration;

use ether_media::{Ticks, Timeline};
use ether_types::Monotonic;

use crate::store::{Piece, RunView, State};
use crate::strand::RungSet;

/// How far ahead of a running encoder a segment may be and still be waited for.
const WITHIN_REACH: Ticks = Ticks(24 * Ticks::HZ);
/// Segments before the one asked for last that belong to the same burst of requests.
const BURST: u32 = 4;

/// A run that is started for another rung so soon after the last one was means that several are watched: they
/// are then made together, from one decoding, which costs less than going to and fro.
const TOGETHER: Duration = Duration::from_secs(12);

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing to do until something changes.
    Wait,
    /// No run makes what is asked for: start one at this segment, after ending any that is there.
    Start {
        /// The segment.
        first: u32,
        /// The rungs that it is to make.
        rungs: RungSet,
    },
    /// End the run that is there, and the execution with it.
    Seal,
}

/// Decides from the state alone. `first` is where a viewer begins who asks for the initialization segment.
pub(crate) fn next_step(state: &State, timeline: &Timeline, first: u32, now: Monotonic) -> Step {
    if state.sealed {
        return Step::Seal;
    }
    let missing = |piece: &&Piece| match **piece {
        Piece::Init { rung } => state.inits[rung].is_none(),
        Piece::Segment { number, rung } => {
            let past = state
                .source_end
                .is_some_and(|end| timeline.start(number as usize) >= end);
            !past && !state.segments.contains_key(&(number, rung))
        }
    };
    let wanted: Vec<Piece> = state.wants.values().filter(missing).copied().collect();
    let numbered = |piece: &Piece| match *piece {
        Piece::Segment { number, .. } => Some(number),
        Piece::Init { .. } => None,
    };
    let Some(newest) = wanted.iter().rev().find_map(numbered) else {
        return initialization(state, &wanted, timeline, first, now);
    };
    let burst = newest.saturating_sub(BURST)..=newest;
    let in_burst = |piece: &&Piece| numbered(piece).is_none_or(|number| burst.contains(&number));
    let lowest = wanted
        .iter()
        .filter(in_burst)
        .filter_map(numbered)
        .min()
        .unwrap_or(newest);
    let asked = wanted.iter().filter(in_burst);
    let reached = |piece: &Piece| {
        state.run.is_some_and(|run| match *piece {
            Piece::Init { rung } => run.rungs.has(rung),
            Piece::Segment { number, rung } => reaches(&run, rung, number, timeline),
        })
    };
    if asked.clone().all(reached) {
        return Step::Wait;
    }
    let asked = asked.fold(RungSet::default(), |set, piece| {
        set.with(RungSet::one(piece.rung()))
    });
    Step::Start {
        first: lowest,
        rungs: together(state, asked, now),
    }
}

/// Only initialization segments are missing: any run of their rungs makes them. The next segment that such a
/// viewer asks for is expected to follow the one that was asked for last.
fn initialization(state: &State, wanted: &[Piece], timeline: &Timeline, first: u32, now: Monotonic) -> Step {
    let rungs = wanted.iter().fold(RungSet::default(), |set, piece| {
        set.with(RungSet::one(piece.rung()))
    });
    if rungs.is_empty() || state.run.is_some_and(|run| run.rungs.contains(rungs)) {
        return Step::Wait;
    }
    let last = u32::try_from(timeline.len().saturating_sub(1)).unwrap_or(u32::MAX);
    Step::Start {
        first: state
            .requested
            .map_or(first, |_| state.cursor.saturating_add(1).min(last)),
        rungs: together(state, rungs, now),
    }
}

/// The rungs of a run that is started for `asked`: these alone, unless others were wanted a moment ago too.
fn together(state: &State, asked: RungSet, now: Monotonic) -> RungSet {
    let Some(run) = state.run.filter(|run| !run.rungs.contains(asked)) else {
        return asked;
    };
    let recent = state
        .switched
        .is_some_and(|at| now.saturating_since(at) < TOGETHER);
    if recent { asked.with(run.rungs) } else { asked }
}

/// Whether `run` makes segment `number` of `rung` soon: it has not passed it and is not too far from it.
pub(crate) fn reaches(run: &RunView, rung: usize, number: u32, timeline: &Timeline) -> bool {
    let distance = timeline.start(number as usize) - timeline.start(run.position as usize);
    run.rungs.has(rung)
        && number >= run.next[rung]
        && (distance <= WITHIN_REACH || number <= run.position.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        Timeline::grid(Ticks::ZERO, Ticks(600 * Ticks::HZ), Ticks(6 * Ticks::HZ), None).unwrap()
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn start(first: u32) -> Step {
        Step::Start {
            first,
            rungs: RungSet::one(0),
        }
    }

    fn state(wants: &[u32]) -> State {
        let mut state = State::default();
        for (ticket, number) in wants.iter().enumerate() {
            let piece = Piece::Segment {
                rung: 0,
                number: *number,
            };
            state.wants.insert(ticket as u64, piece);
        }
        state
    }

    fn run(start: u32, next: u32, position: u32) -> Option<RunView> {
        Some(RunView {
            id: 1,
            start,
            rungs: RungSet::one(0),
            next: [next; ether_encoder::MOST_RUNGS],
            position,
            held: false,
            produced: None,
        })
    }

    #[test]
    fn a_burst_in_any_order_starts_once_at_its_lowest() {
        for wants in [[5, 6, 7, 8], [8, 7, 6, 5], [6, 8, 5, 7]] {
            assert_eq!(next_step(&state(&wants), &timeline(), 0, at(0)), start(5));
            let mut running = state(&wants);
            running.run = run(5, 5, 5);
            assert_eq!(next_step(&running, &timeline(), 0, at(0)), Step::Wait);
        }
    }

    #[test]
    fn a_seek_wins_over_an_older_request() {
        let mut seeking = state(&[3, 50]);
        seeking.run = run(3, 3, 3);
        assert_eq!(next_step(&seeking, &timeline(), 0, at(0)), start(50));
        let mut back = state(&[50, 3]);
        back.run = run(50, 50, 51);
        assert_eq!(next_step(&back, &timeline(), 0, at(0)), start(3));
    }

    #[test]
    fn an_older_request_is_served_once_the_newer_is_gone() {
        assert_eq!(next_step(&state(&[3]), &timeline(), 0, at(0)), start(3));
    }

    #[test]
    fn what_is_near_is_waited_for_and_what_was_evicted_is_made_again() {
        let mut near = state(&[9]);
        near.run = run(5, 5, 5);
        assert_eq!(next_step(&near, &timeline(), 0, at(0)), Step::Wait);
        let mut far = state(&[10]);
        far.run = run(5, 5, 5);
        assert_eq!(next_step(&far, &timeline(), 0, at(0)), start(10));
        let mut evicted = state(&[6]);
        evicted.run = run(5, 9, 9);
        assert_eq!(next_step(&evicted, &timeline(), 0, at(0)), start(6));
        let mut waiting_for_sound = state(&[8]);
        waiting_for_sound.run = run(5, 8, 9);
        assert_eq!(next_step(&waiting_for_sound, &timeline(), 0, at(0)), Step::Wait);
    }

    #[test]
    fn the_initialization_segment_starts_where_the_viewer_begins() {
        let mut state = State::default();
        state.wants.insert(0, Piece::Init { rung: 0 });
        assert_eq!(next_step(&state, &timeline(), 7, at(0)), start(7));
        state.wants.insert(1, Piece::Segment { rung: 0, number: 20 });
        assert_eq!(next_step(&state, &timeline(), 7, at(0)), start(20));
        state.run = run(20, 20, 20);
        assert_eq!(next_step(&state, &timeline(), 7, at(0)), Step::Wait);
    }

    #[test]
    fn nothing_starts_past_the_end_of_the_source_or_after_sealing() {
        let mut ended = state(&[20]);
        ended.source_end = Some(Ticks(72 * Ticks::HZ));
        assert_eq!(next_step(&ended, &timeline(), 0, at(0)), Step::Wait);
        ended.sealed = true;
        assert_eq!(next_step(&ended, &timeline(), 0, at(0)), Step::Seal);
    }

    fn want(state: &mut State, ticket: u64, rung: usize, number: u32) {
        state.wants.insert(ticket, Piece::Segment { rung, number });
    }

    /// A viewer whose player changes to another quality gets that one; players that watch several get them from
    /// one encoder.
    #[test]
    fn a_switch_makes_the_other_rung_alone_and_going_to_and_fro_makes_both() {
        let mut state = State {
            run: run(5, 7, 8),
            ..State::default()
        };
        want(&mut state, 0, 2, 7);
        let alone = Step::Start {
            first: 7,
            rungs: RungSet::one(2),
        };
        assert_eq!(next_step(&state, &timeline(), 0, at(100)), alone);
        state.switched = Some(at(95));
        let both = Step::Start {
            first: 7,
            rungs: RungSet::one(0).with(RungSet::one(2)),
        };
        assert_eq!(next_step(&state, &timeline(), 0, at(100)), both);
        assert_eq!(next_step(&state, &timeline(), 0, at(200)), alone);
    }

    #[test]
    fn rungs_that_are_asked_for_together_are_made_together() {
        let mut state = State::default();
        want(&mut state, 0, 0, 3);
        want(&mut state, 1, 3, 3);
        want(&mut state, 2, 1, 4);
        let rungs = [0, 1, 3]
            .map(RungSet::one)
            .into_iter()
            .fold(RungSet::default(), RungSet::with);
        assert_eq!(
            next_step(&state, &timeline(), 0, at(0)),
            Step::Start { first: 3, rungs }
        );
        let mut running = run(3, 3, 3).unwrap();
        running.rungs = rungs;
        state.run = Some(running);
        assert_eq!(next_step(&state, &timeline(), 0, at(0)), Step::Wait);
    }
}
