//! What was read before, within a budget: what was asked for longest ago goes first.

use std::collections::HashMap;
use std::hash::Hash;

pub(super) struct Shelf<K, V> {
    budget: usize,
    used: usize,
    turn: u64,
    kept: HashMap<K, Kept<V>>,
}

struct Kept<V> {
    value: V,
    weight: usize,
    turn: u64,
}

impl<K: Clone + Eq + Hash, V> Shelf<K, V> {
    pub(super) fn new(budget: usize) -> Self {
        Self {
            budget,
            used: 0,
            turn: 0,
            kept: HashMap::new(),
        }
    }

    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
        self.turn += 1;
        let kept = self.kept.get_mut(key)?;
        kept.turn = self.turn;
        Some(&kept.value)
    }

    /// Puts in or replaces. Something heavier than the whole budget is not kept.
    pub(super) fn put(&mut self, key: K, value: V, weight: usize) {
        self.forget(&key);
        if weight > self.budget {
            return;
        }
        self.turn += 1;
        self.used += weight;
        let turn = self.turn;
        self.kept.insert(key, Kept { value, weight, turn });
        while self.used > self.budget {
            let heavy = self.kept.iter().filter(|(_, kept)| kept.weight > 0);
            let oldest = heavy.min_by_key(|(_, kept)| kept.turn);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.forget(&key);
        }
    }

    pub(super) fn forget(&mut self, key: &K) {
        if let Some(kept) = self.kept.remove(key) {
            self.used -= kept.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Shelf;

    #[test]
    fn what_was_asked_for_longest_ago_makes_room() {
        let mut shelf = Shelf::new(10);
        shelf.put(1, 'a', 4);
        shelf.put(2, 'b', 4);
        assert_eq!(shelf.get(&1), Some(&'a'));
        shelf.put(3, 'c', 4);
        assert_eq!(
            (shelf.get(&1).copied(), shelf.get(&2).copied()),
            (Some('a'), None)
        );
        shelf.put(3, 'd', 11);
        assert_eq!((shelf.get(&3).copied(), shelf.used), (None, 4));
    }
}
