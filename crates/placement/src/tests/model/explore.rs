//! Breadth first over every reachable state, so that the first violation has a shortest trace.

use std::collections::HashSet;

use crate::tests::model::broken::Broken;
use crate::tests::model::system::{Bounds, Step, System};

/// What an exploration came to.
pub(super) struct Found {
    pub(super) states: usize,
    pub(super) transitions: usize,
    /// The broken invariant, and the steps that led to it.
    pub(super) violation: Option<(String, Vec<Step>)>,
    /// For each state the one it was reached from, and by what.
    from: Vec<Option<(usize, Step)>>,
}

impl Found {
    /// The steps to the `state`th state that was found.
    pub(super) fn trace(&self, state: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut at = state;
        while let Some((before, step)) = &self.from[at] {
            steps.push(step.clone());
            at = *before;
        }
        steps.reverse();
        steps
    }
}

pub(super) fn explore(bounds: &Bounds, broken: Broken) -> Found {
    let reservations = System::reservations(bounds);
    let first = System::new(bounds.also, bounds.shared);
    let mut seen = HashSet::from([first.fingerprint()]);
    let mut found = Found {
        states: 1,
        transitions: 0,
        violation: None,
        from: vec![None],
    };
    let mut level = vec![(0_usize, first)];
    while !level.is_empty() {
        let mut next = Vec::new();
        for (at, system) in level {
            for step in system.enabled(bounds, &reservations) {
                found.transitions += 1;
                if let (Broken::Nothing, Step::Ask(command)) = (broken, &step)
                    && system.leaves_as_is(command) == Ok(true)
                {
                    continue;
                }
                let mut after = system.clone();
                if let Err(why) = after.step(&step, broken) {
                    let mut trace = found.trace(at);
                    trace.push(step);
                    found.violation = Some((why, trace));
                    return found;
                }
                if seen.insert(after.fingerprint()) {
                    next.push((found.states, after));
                    found.from.push(Some((at, step)));
                    found.states += 1;
                }
            }
        }
        level = next;
    }
    found
}
