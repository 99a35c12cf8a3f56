//! The latest prompt for each anchor, in a table of fixed buckets: one line of a processor's cache is read for one.
//!
//! Nothing is removed: the table grows while half of it is taken, and of a full bucket the oldest prompt's anchor makes room, and a number that is not kept any more
//! is for its reader to pass over. Few bits of an anchor are held, so that a prompt found by it may have nothing of it.

use crate::mixing::GOLDEN;

/// Anchors of one bucket, each with its prompt's number; 0 is free.
const BUCKET: usize = 8;
const FIRST_BUCKETS: usize = 1024;

#[derive(Clone)]
#[repr(align(64))]
struct Bucket([u64; BUCKET]);

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
        let found = self.bucket(tag).iter().find(|held| number(**held) != 0 && tag_of(**held) == tag);
        found.map(|held| number(*held))
    }

    /// Note that a prompt has an anchor; numbers count up from 1 to `now`, and around.
    pub fn put(&mut self, anchor: u64, prompt: u32, now: u32) {
        if 2 * self.taken > BUCKET * self.buckets.len() && self.buckets.len() < self.most {
            self.grow(now);
        }
        self.place(tag(anchor), prompt, now);
    }

    /// Read the buckets of anchors that are looked up or put next: from memory many come at a time, not one by one.
    pub fn fetch(&self, anchors: &[u64]) {
        std::hint::black_box(anchors.iter().fold(0, |read, anchor| read ^ self.bucket(tag(*anchor))[0]));
    }

    fn place(&mut self, tag: u32, prompt: u32, now: u32) {
        let at = tag as usize & (self.buckets.len() - 1);
        let held = &mut self.buckets[at].0;
        let own = held.iter().position(|held| number(*held) != 0 && tag_of(*held) == tag);
        let age = |held: &u64| if number(*held) == 0 { u32::MAX } else { now.wrapping_sub(number(*held)) };
        let oldest = || (0..BUCKET).max_by_key(|at| age(&held[*at])).unwrap_or(0);
        let slot = own.unwrap_or_else(oldest);
        self.taken += usize::from(number(held[slot]) == 0);
        held[slot] = u64::from(tag) << 32 | u64::from(prompt);
    }

    fn grow(&mut self, now: u32) {
        let buckets = empty(2 * self.buckets.len());
        let old = std::mem::replace(&mut self.buckets, buckets);
        self.taken = 0;
        for held in old.iter().flat_map(|bucket| bucket.0).filter(|held| number(*held) != 0) {
            self.place(tag_of(held), number(held), now);
        }
    }

    fn bucket(&self, tag: u32) -> &[u64; BUCKET] {
        &self.buckets[tag as usize & (self.buckets.len() - 1)].0
    }
}

fn empty(buckets: usize) -> Vec<Bucket> {
    vec![Bucket([0; BUCKET]); buckets]
}

fn tag(anchor: u64) -> u32 {
    (anchor.wrapping_mul(GOLDEN) >> 32) as u32
}

fn tag_of(held: u64) -> u32 {
    (held >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn number(held: u64) -> u32 {
    held as u32
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
                places.put(splitmix64(u64::from(prompt) * 10 + anchor), prompt, prompt);
            }
            places.put(7, prompt, prompt);
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
            places.put(splitmix64(u64::from(prompt)), prompt, prompt);
        }
        assert!(places.bytes() <= 1 << 16 && places.bytes() >= most);
        let latest = (99_001..=100_000u32).filter(|prompt| places.get(splitmix64(u64::from(*prompt))) == Some(*prompt));
        assert!(latest.count() > 990);
        assert_eq!(places.get(splitmix64(1)), None);
    }

    #[test]
    fn numbers_count_around() {
        let mut places = Places::new(0);
        for (anchor, prompt) in [(1, u32::MAX - 1), (2, u32::MAX), (3, 1), (4, 2)] {
            places.put(anchor, prompt, prompt);
        }
        for at in 0..200 {
            places.put(splitmix64(at), 3, 3);
        }
        assert!(places.get(1).is_none() && places.bytes() == size_of::<Bucket>());
    }
}
