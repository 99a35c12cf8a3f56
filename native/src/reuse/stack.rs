//! Entries in the order of their last use, each with the blocks that it stands for, and the place of each.

use crate::mixing::GOLDEN;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Keys are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct OwnHash(u64);

impl Hasher for OwnHash {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key.wrapping_mul(GOLDEN);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Where an entry is in the order of use, and the blocks that it stands for.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    blocks: f64,
}

/// An order-statistics structure: a Fenwick tree over the moments of use, renumbered when these have run out.
#[derive(Debug)]
pub struct Stack {
    entries: HashMap<u64, Entry, BuildHasherDefault<OwnHash>>,
    /// The key used at each moment; the entry of that key tells whether it was used again.
    moments: Vec<u64>,
    sums: Vec<f64>,
    /// No moment before this one has an entry.
    oldest: usize,
    blocks: f64,
    most: usize,
}

impl Stack {
    /// At most so many entries.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            entries: HashMap::default(),
            moments: Vec::new(),
            sums: vec![0.0; 2 * most + 1],
            oldest: 0,
            blocks: 0.0,
            most,
        }
    }

    /// Blocks of all entries.
    #[must_use]
    pub fn blocks(&self) -> f64 {
        self.blocks
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Blocks used since an entry was, and its own; None where there is none.
    #[must_use]
    pub fn place(&self, key: u64) -> Option<(f64, f64)> {
        let entry = self.entries.get(&key)?;
        let above = self.blocks - self.sum(entry.slot as usize);
        Some((above.max(0.0), entry.blocks))
    }

    /// Uses an entry, which now stands for so many blocks. One that has been there too long makes room.
    pub fn use_one(&mut self, key: u64, blocks: f64) {
        self.remove(key);
        if self.entries.len() >= self.most {
            self.drop_oldest();
        }
        if self.moments.len() + 1 >= self.sums.len() {
            self.renumber();
        }
        let slot = self.moments.len();
        self.moments.push(key);
        #[expect(clippy::cast_possible_truncation, reason = "twice as many as entries")]
        self.entries.insert(key, Entry { slot: slot as u32, blocks });
        self.add(slot, blocks);
    }

    /// An entry stands for so many blocks less; it stays where it is.
    pub fn take(&mut self, key: u64, blocks: f64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            let less = blocks.min(entry.blocks);
            entry.blocks -= less;
            let slot = entry.slot as usize;
            self.add(slot, -less);
        }
    }

    /// Drops the entries used longest ago until those that are left stand for at most so many blocks.
    pub fn trim(&mut self, reach: f64) {
        while self.blocks > reach && !self.entries.is_empty() {
            self.drop_oldest();
        }
    }

    /// Keeps the entries of which `kept` holds; `factor` is what each that is left stands for more.
    pub fn thin(&mut self, kept: impl Fn(u64) -> bool, factor: f64) {
        self.entries.retain(|key, _| kept(*key));
        for entry in self.entries.values_mut() {
            entry.blocks *= factor;
        }
        self.renumber();
    }

    fn remove(&mut self, key: u64) {
        if let Some(entry) = self.entries.remove(&key) {
            self.add(entry.slot as usize, -entry.blocks);
        }
    }

    fn drop_oldest(&mut self) {
        while let Some(key) = self.moments.get(self.oldest).copied() {
            let here = self.entries.get(&key).is_some_and(|entry| entry.slot as usize == self.oldest);
            self.oldest += 1;
            if here {
                return self.remove(key);
            }
        }
    }

    /// Numbers the moments anew, without those of entries used again.
    fn renumber(&mut self) {
        let moments = std::mem::take(&mut self.moments);
        self.sums.fill(0.0);
        self.blocks = 0.0;
        self.oldest = 0;
        for (slot, key) in moments.into_iter().enumerate() {
            let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.slot as usize == slot) else {
                continue;
            };
            #[expect(clippy::cast_possible_truncation, reason = "twice as many as entries")]
            let fresh = self.moments.len() as u32;
            entry.slot = fresh;
            let blocks = entry.blocks;
            self.moments.push(key);
            self.add(fresh as usize, blocks);
        }
    }

    fn add(&mut self, slot: usize, blocks: f64) {
        self.blocks += blocks;
        let mut place = slot + 1;
        while place < self.sums.len() {
            self.sums[place] += blocks;
            place += place & place.wrapping_neg();
        }
    }

    /// Blocks of entries used up to a moment.
    fn sum(&self, slot: usize) -> f64 {
        let (mut place, mut sum) = (slot + 1, 0.0);
        while place > 0 {
            sum += self.sums[place];
            place -= place & place.wrapping_neg();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::Stack;

    #[test]
    fn a_place_counts_what_was_used_since_through_renumbering() {
        let mut stack = Stack::new(4);
        for round in 0..20 {
            for key in [1, 2, 3] {
                stack.use_one(key, 1.0);
            }
            assert_eq!(stack.place(1), Some((2.0, 1.0)), "round {round}");
            assert_eq!(stack.place(3), Some((0.0, 1.0)));
        }
        assert_eq!(stack.len(), 3);
    }

    #[test]
    fn what_is_deeper_than_the_reach_and_more_than_the_most_is_dropped() {
        let mut stack = Stack::new(4);
        for key in 1..=6 {
            stack.use_one(key, 2.0);
        }
        assert_eq!((stack.len(), stack.place(2), stack.place(3)), (4, None, Some((6.0, 2.0))));
        stack.trim(5.0);
        assert_eq!((stack.len(), stack.place(4), stack.place(5)), (2, None, Some((2.0, 2.0))));
    }

    #[test]
    fn thinned_entries_stand_for_those_that_went() {
        let mut stack = Stack::new(8);
        for key in 0..8 {
            stack.use_one(key, 1.0);
        }
        stack.thin(|key| key % 2 == 0, 2.0);
        assert_eq!((stack.len(), stack.place(0), stack.place(1)), (4, Some((6.0, 2.0)), None));
    }
}
