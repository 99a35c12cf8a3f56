//! The order in which kept prompts came, by which the oldest are dropped.

use std::collections::VecDeque;

/// Entries out of date that are let be, besides one for each prompt.
const SPARE: usize = 16;

/// One keeping of a prompt: its number, and the stamp of that keeping.
pub type Kept = (u32, u32);

/// Prompts by when they were kept last. One that is kept again has one more entry; only that of its latest stamp counts.
#[derive(Default)]
pub struct Order {
    entries: VecDeque<Kept>,
    held: usize,
}

impl Order {
    /// Prompts that are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held
    }

    /// Note that a prompt is kept, as a new one or again; `current` tells whether an entry is its prompt's latest.
    pub fn keep(&mut self, kept: Kept, new: bool, current: impl Fn(Kept) -> bool) {
        self.held += usize::from(new);
        self.entries.push_back(kept);
        if self.entries.len() > 2 * self.held + SPARE {
            self.entries.retain(|entry| current(*entry));
        }
    }

    /// Note that a prompt is not held any more.
    pub fn drop(&mut self) {
        self.held -= 1;
    }

    /// The prompt that was kept longest ago; it stays.
    pub fn oldest(&mut self, current: impl Fn(Kept) -> bool) -> Option<u32> {
        while let Some(entry) = self.entries.front().copied() {
            if current(entry) {
                return Some(entry.0);
            }
            self.entries.pop_front();
        }
        None
    }

    /// Entries, those out of date too.
    #[cfg(test)]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_the_one_not_kept_for_longest() {
        let mut order = Order::default();
        let latest = |(number, stamp): Kept| stamp == [0, 7, 2, 3][number as usize];
        for (kept, new) in [((1, 1), true), ((2, 2), true), ((3, 3), true), ((1, 7), false)] {
            order.keep(kept, new, latest);
        }
        assert_eq!((order.len(), order.oldest(latest), order.oldest(latest)), (3, Some(2), Some(2)));
        assert_eq!(order.oldest(|kept| kept == (1, 7)), Some(1));
        assert_eq!(order.oldest(|_| false), None);
    }

    #[test]
    fn entries_are_bounded_however_often_one_is_kept() {
        let mut order = Order::default();
        for stamp in 1..1000 {
            order.keep((1, stamp), stamp == 1, |kept| kept == (1, stamp));
            assert!(order.entries() <= 2 + SPARE);
        }
        order.drop();
        assert_eq!(order.len(), 0);
    }
}
