//! What an execution's supervisor does next. Pure, so that every race between viewers can be driven by a test.

use ether_encoder::Resource;
use ether_media::{Ticks, Timeline};

use crate::store::{RunView, State};

/// How far ahead of a running encoder a segment may be and still be waited for.
const WITHIN_REACH: Ticks = Ticks(24 * Ticks::HZ);
/// Segments before the one asked for last that belong to the same burst of requests.
const BURST: u32 = 4;

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing to do until something changes.
    Wait,
    /// No run makes what is asked for: start one at this segment, after ending any that is there.
    Start(u32),
    /// End the run that is there, and the execution with it.
    Seal,
}

/// Decides from the state alone. `first` is where a viewer begins who asks for the initialization segment.
pub(crate) fn next_step(state: &State, timeline: &Timeline, first: u32) -> Step {
    if state.sealed {
        return Step::Seal;
    }
    let missing = |resource: &Resource| match resource {
        Resource::Init { .. } => state.init.is_none().then_some(None),
        Resource::Segment { number, .. } => {
            let past = state
                .source_end
                .is_some_and(|end| timeline.start(*number as usize) >= end);
            (!past && !state.segments.contains_key(number)).then_some(Some(*number))
        }
    };
    let newest = state
        .wants
        .values()
        .rev()
        .filter_map(missing)
        .max_by_key(Option::is_some);
    let Some(newest) = newest else { return Step::Wait };
    let Some(newest) = newest_segment(state, &missing).or(newest) else {
        // Only the initialization segment is missing: any run makes it.
        return if state.run.is_some() {
            Step::Wait
        } else {
            Step::Start(first)
        };
    };
    let burst = newest.saturating_sub(BURST)..=newest;
    let wanted = state.wants.values().filter_map(missing).flatten();
    let lowest = wanted
        .filter(|number| burst.contains(number))
        .min()
        .unwrap_or(newest);
    match state.run {
        Some(run) if reaches(run, lowest, timeline) => Step::Wait,
        _ => Step::Start(lowest),
    }
}

/// The segment that was asked for last among those that are missing.
fn newest_segment(state: &State, missing: &impl Fn(&Resource) -> Option<Option<u32>>) -> Option<u32> {
    state
        .wants
        .values()
        .rev()
        .find_map(|resource| missing(resource).flatten())
}

/// Whether `run` makes `number` soon: it has not passed it and is not too far from it.
fn reaches(run: RunView, number: u32, timeline: &Timeline) -> bool {
    let distance = timeline.start(number as usize) - timeline.start(run.position as usize);
    number >= run.next && (distance <= WITHIN_REACH || number <= run.position.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        Timeline::grid(Ticks::ZERO, Ticks(600 * Ticks::HZ), Ticks(6 * Ticks::HZ), None).unwrap()
    }

    fn state(wants: &[u32]) -> State {
        let mut state = State::default();
        for (ticket, number) in wants.iter().enumerate() {
            let resource = Resource::Segment {
                representation: 0,
                number: *number,
            };
            state.wants.insert(ticket as u64, resource);
        }
        state
    }

    fn run(start: u32, next: u32, position: u32) -> Option<RunView> {
        Some(RunView {
            id: 1,
            start,
            next,
            position,
            held: false,
            produced: None,
        })
    }

    #[test]
    fn a_burst_in_any_order_starts_once_at_its_lowest() {
        for wants in [[5, 6, 7, 8], [8, 7, 6, 5], [6, 8, 5, 7]] {
            assert_eq!(next_step(&state(&wants), &timeline(), 0), Step::Start(5));
            let mut running = state(&wants);
            running.run = run(5, 5, 5);
            assert_eq!(next_step(&running, &timeline(), 0), Step::Wait);
        }
    }

    #[test]
    fn a_seek_wins_over_an_older_request() {
        let mut seeking = state(&[3, 50]);
        seeking.run = run(3, 3, 3);
        assert_eq!(next_step(&seeking, &timeline(), 0), Step::Start(50));
        let mut back = state(&[50, 3]);
        back.run = run(50, 50, 51);
        assert_eq!(next_step(&back, &timeline(), 0), Step::Start(3));
    }

    #[test]
    fn an_older_request_is_served_once_the_newer_is_gone() {
        assert_eq!(next_step(&state(&[3]), &timeline(), 0), Step::Start(3));
    }

    #[test]
    fn what_is_near_is_waited_for_and_what_was_evicted_is_made_again() {
        let mut near = state(&[9]);
        near.run = run(5, 5, 5);
        assert_eq!(next_step(&near, &timeline(), 0), Step::Wait);
        let mut far = state(&[10]);
        far.run = run(5, 5, 5);
        assert_eq!(next_step(&far, &timeline(), 0), Step::Start(10));
        let mut evicted = state(&[6]);
        evicted.run = run(5, 9, 9);
        assert_eq!(next_step(&evicted, &timeline(), 0), Step::Start(6));
        let mut waiting_for_sound = state(&[8]);
        waiting_for_sound.run = run(5, 8, 9);
        assert_eq!(next_step(&waiting_for_sound, &timeline(), 0), Step::Wait);
    }

    #[test]
    fn the_initialization_segment_starts_where_the_viewer_begins() {
        let mut state = State::default();
        state.wants.insert(0, Resource::Init { representation: 0 });
        assert_eq!(next_step(&state, &timeline(), 7), Step::Start(7));
        state.wants.insert(
            1,
            Resource::Segment {
                representation: 0,
                number: 20,
            },
        );
        assert_eq!(next_step(&state, &timeline(), 7), Step::Start(20));
        state.run = run(20, 20, 20);
        assert_eq!(next_step(&state, &timeline(), 7), Step::Wait);
    }

    #[test]
    fn nothing_starts_past_the_end_of_the_source_or_after_sealing() {
        let mut ended = state(&[20]);
        ended.source_end = Some(Ticks(72 * Ticks::HZ));
        assert_eq!(next_step(&ended, &timeline(), 0), Step::Wait);
        ended.sealed = true;
        assert_eq!(next_step(&ended, &timeline(), 0), Step::Seal);
    }
}
