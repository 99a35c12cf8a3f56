//! The latest prompt for each anchor, in a table of fixed buckets: one line of a processor's cache is read for one.
//!
//! Nothing is removed: the table grows while half of it is taken, and of a full bucket the anchor that was put longest
//! ago makes room, and a number that is not kept any more is for its reader to pass over. Few bits of an anchor are held,
//! so that a prompt found by it may have nothing of it.

use crate::mixing::GOLDEN;

/// Anchors of one bucket.
const BUCKET: usize = 8;
const FIRST_BUCKETS: usize = 1024;

/// Anchors with the numbers of their prompts, the one put last first; a number of 0 is free, and so are all behind it.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; BUCKET],
    numbers: [u32; BUCKET],
}

impl Bucket {
    /// The number of an anchor; 0 without.
    fn get(&self, tag: u32) -> u32 {
        let held = self.tags.iter().zip(&self.numbers);
        held.fold(0, |found, (held, number)| found | if *held == tag { *number } else { 0 })
    }

    /// Note an anchor's number as the latest; whether a free place is taken.
    fn put(&mut self, tag: u32, number: u32) -> bool {
        let slot = self.slot(tag);
        let free = self.numbers[slot] == 0;
        if slot == BUCKET - 1 {
            self.tags.copy_within(..BUCKET - 1, 1);
            self.numbers.copy_within(..BUCKET - 1, 1);
        } else {
            self.tags.copy_within(..slot, 1);
            self.numbers.copy_within(..slot, 1);
        }
        (self.tags[0], self.numbers[0]) = (tag, number);
        free
    }

    /// The place of an anchor; of one that is not there the last one.
    fn slot(&self, tag: u32) -> usize {
        let mut from_end = 0;
        for at in 0..BUCKET {
            let held = self.tags[at] == tag && self.numbers[at] != 0;
            from_end |= if held { BUCKET - 1 - at } else { 0 };
        }
        BUCKET - 1 - from_end
    }
}

/// Numbers of prompts by their anchors.
pub struct Places {
    buckets: Vec<Bucket>,
    most: usize,
    taken: usize,
}

impl Places {
    /// A table that grows up to so many bytes, but is never empty.
    #[must_use]
    pub fn new(most_bytes: usize) -> Self {
        let most = (most_bytes / size_of::<Bucket>() / 2 + 1).next_power_of_two();
        Self { buckets: empty(FIRST_BUCKETS.min(most)), most, taken: 0 }
    }

    /// Memory of the table.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Bucket>() * self.buckets.len()
    }

    /// The number of the latest prompt that had an anchor; of one of a few billions the number of another prompt.
    #[must_use]
    pub fn get(&self, anchor: u64) -> Option<u32> {
        let tag = tag(anchor);
        Some(self.buckets[self.at(tag)].get(tag)).filter(|number| *number != 0)
    }

    /// Note that a prompt has an anchor; numbers are from 1 on.
    pub fn put(&mut self, anchor: u64, prompt: u32) {
        if 2 * self.taken > BUCKET * self.buckets.len() && self.buckets.len() < self.most {
            self.grow();
        }
        self.place(tag(anchor), prompt);
    }

    /// Read the buckets of anchors that are looked up or put next: from memory many come at a time, not one by one.
    pub fn fetch(&self, anchors: &[u64]) {
        let first = |anchor: &u64| self.buckets[self.at(tag(*anchor))].tags[0];
        std::hint::black_box(anchors.iter().fold(0, |read, anchor| read ^ first(anchor)));
    }

    fn place(&mut self, tag: u32, prompt: u32) {
        let at = self.at(tag);
        self.taken += usize::from(self.buckets[at].put(tag, prompt));
    }

    /// Twice as many buckets; what was put first is put first again.
    fn grow(&mut self) {
        let buckets = empty(2 * self.buckets.len());
        let old = std::mem::replace(&mut self.buckets, buckets);
        self.taken = 0;
        for bucket in old {
            for at in (0..BUCKET).rev().filter(|at| bucket.numbers[*at] != 0) {
                self.place(bucket.tags[at], bucket.numbers[at]);
            }
        }
    }

    fn at(&self, tag: u32) -> usize {
        tag as usize & (self.buckets.len() - 1)
    }
}

fn empty(buckets: usize) -> Vec<Bucket> {
    vec![Bucket { tags: [0; BUCKET], numbers: [0; BUCKET] }; buckets]
}

fn tag(anchor: u64) -> u32 {
    (anchor.wrapping_mul(GOLDEN) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mixing::splitmix64;

    #[test]
    fn the_latest_prompt_of_an_anchor_is_found_while_the_table_grows() {
        let mut places = Places::new(1 << 22);
        for prompt in 1..=2_000u32 {
            for anchor in 0..10 {
                places.put(splitmix64(u64::from(prompt) * 10 + anchor), prompt);
            }
            places.put(7, prompt);
        }
        assert!(places.buckets.len() > FIRST_BUCKETS);
        assert_eq!(places.get(7), Some(2_000));
        let found = |prompt: u32| (0..10).all(|at| places.get(splitmix64(u64::from(prompt) * 10 + at)) == Some(prompt));
        assert!((1_001..=2_000).filter(|prompt| found(*prompt)).count() > 950);
        assert_eq!(places.get(splitmix64(1)), None);
    }

    #[test]
    fn a_full_table_keeps_the_latest_and_its_size() {
        let mut places = Places::new(1 << 16);
        let most = places.bytes();
        for prompt in 1..=100_000u32 {
            places.put(splitmix64(u64::from(prompt)), prompt);
        }
        assert!(places.bytes() <= 1 << 16 && places.bytes() >= most);
        let latest = (99_001..=100_000u32).filter(|prompt| places.get(splitmix64(u64::from(*prompt))) == Some(*prompt));
        assert!(latest.count() > 990);
        assert_eq!(places.get(splitmix64(1)), None);
    }

    #[test]
    fn a_full_bucket_forgets_what_was_put_longest_ago() {
        let mut bucket = empty(1)[0];
        for tag in 0..8 {
            assert!(bucket.put(tag, 10 + tag));
        }
        assert!(!bucket.put(0, 99) && !bucket.put(8, 18));
        assert_eq!([0, 1, 2, 8].map(|tag| bucket.get(tag)), [99, 0, 12, 18]);
    }

    #[test]
    fn numbers_count_around() {
        let mut places = Places::new(0);
        for (anchor, prompt) in [(1, u32::MAX - 1), (2, u32::MAX), (3, 1), (4, 2)] {
            places.put(anchor, prompt);
        }
        for at in 0..200 {
            places.put(splitmix64(at), 3);
        }
        assert!(places.get(1).is_none() && places.bytes() == size_of::<Bucket>());
    }
}
