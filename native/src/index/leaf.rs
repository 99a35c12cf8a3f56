//! A leaf of the table: 64 adjacent buckets; a full leaf splits in two.
//!
//! An entry is in its home bucket or in one of the next few, wrapping at the end. The last bits of the home's number
//! are the last bits of its tag, so that the home follows from the tag and the bucket that it is in.

use super::arena::BlockId;
use super::bucket::{Bucket, EMPTY, SLOTS};

pub const BUCKETS: usize = 64;
/// Number of buckets, from its home on, in which an entry may be.
const REACH: usize = 1 << TAG_END;
/// Number of last bits that a tag has in common with its home's number.
pub const TAG_END: u32 = 3;
const IS_IN: &str = "an entry that is in";
/// Largest fill of a merged leaf, in 64ths.
const SPARSE: usize = 42;

#[derive(Clone, Copy, Debug)]
pub struct Leaf([Bucket; BUCKETS]);

/// An entry's home bucket in its leaf, and its tag.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub home: usize,
    pub tag: u16,
}

impl Leaf {
    pub const EMPTY: Self = Self([EMPTY; BUCKETS]);

    #[inline]
    pub fn bucket(&self, number: usize) -> &Bucket {
        &self.0[number % BUCKETS]
    }

    /// The first entry of this home and tag for which `right` holds.
    #[inline]
    pub fn find(&self, entry: Entry, mut right: impl FnMut(BlockId) -> bool) -> Option<BlockId> {
        for at in entry.home..entry.home + REACH {
            let bucket = self.bucket(at);
            let found = bucket.find(entry.tag, &mut right);
            if found.is_some() || bucket.passed() == 0 {
                return found;
            }
        }
        None
    }

    /// Adds an entry; false, and nothing has changed, where all buckets within reach are full.
    #[inline]
    pub fn put(&mut self, entry: Entry, id: BlockId) -> bool {
        self.0[entry.home % BUCKETS].put(entry.tag, id) || self.put_beyond(entry, id)
    }

    #[cold]
    fn put_beyond(&mut self, entry: Entry, id: BlockId) -> bool {
        let Some(past) = (1..REACH).find(|past| self.0[(entry.home + past) % BUCKETS].put(entry.tag, id)) else {
            return false;
        };
        self.pass(entry.home, past);
        true
    }

    fn pass(&mut self, home: usize, past: usize) {
        for at in home..home + past {
            self.0[at % BUCKETS].pass();
        }
    }

    /// Removes an entry that is in; true where its bucket and the neighbouring one are empty now, which is rare unless
    /// the leaf is sparse.
    #[inline]
    pub fn take(&mut self, entry: Entry, id: BlockId) -> bool {
        let past = (0..REACH).find(|past| self.0[(entry.home + past) % BUCKETS].take(entry.tag, id)).expect(IS_IN);
        for before in 0..past {
            self.0[(entry.home + before) % BUCKETS].unpass();
        }
        let at = entry.home + past;
        self.bucket(at).is_empty() && self.bucket(at ^ 1).is_empty()
    }

    /// Changes the block number of an entry that is in.
    pub fn renumber(&mut self, entry: Entry, id: BlockId, to: BlockId) {
        let mut within = entry.home..entry.home + REACH;
        assert!(within.any(|at| self.0[at % BUCKETS].renumber(entry.tag, id, to)), "{IS_IN}");
    }

    /// Keeps the entries whose tag lacks a bit; returns the others in a new leaf.
    pub fn split(&mut self, bit: u16) -> Self {
        let [mut kept, mut other] = [Self::EMPTY; 2];
        for (number, bucket) in self.0.iter().enumerate() {
            let own = |tag| past(number, tag) == 0;
            if bucket.share(bit, own, &mut kept.0[number], &mut other.0[number]) {
                for (tag, id) in bucket.entries().filter(|(tag, _)| !own(*tag)) {
                    let half = if tag & bit == 0 { &mut kept } else { &mut other };
                    half.settle(number, past(number, tag), tag, id);
                }
            }
        }
        *self = kept;
        other
    }

    /// Puts an entry that was `past` buckets beyond its home at that distance, or nearer.
    #[cold]
    fn settle(&mut self, number: usize, past: usize, tag: u16, id: BlockId) {
        let home = (number + BUCKETS - past) % BUCKETS;
        // Where the leaf's end is between them, the buckets there are still to come and need their room.
        let nearer = if home < number { 0 } else { past };
        let past = (nearer..=past).find(|past| self.0[(home + past) % BUCKETS].put(tag, id)).expect("it was there");
        self.pass(home, past);
    }

    /// Both leaves' entries in one; None where that would be too full.
    pub fn merged(&self, other: &Self) -> Option<Self> {
        const MOST: usize = SLOTS * BUCKETS * SPARSE / 64;
        let len = self.len();
        if len > MOST || len + other.len() > MOST {
            return None;
        }
        let mut both = Self::EMPTY;
        let fit = [self, other].into_iter().all(|leaf| {
            leaf.0.iter().enumerate().all(|(number, bucket)| {
                bucket.entries().all(|(tag, id)| {
                    let home = (number + BUCKETS - past(number, tag)) % BUCKETS;
                    both.put(Entry { home, tag }, id)
                })
            })
        });
        fit.then_some(both)
    }

    fn len(&self) -> usize {
        self.0.iter().map(Bucket::len).sum()
    }
}

#[cfg(test)]
impl Leaf {
    /// How many entries each bucket counts as overflowed past it.
    pub fn passed(&self) -> [u16; BUCKETS] {
        self.0.map(|bucket| bucket.passed())
    }

    /// The same, counted from the entries.
    pub fn passed_by_entries(&self) -> [u16; BUCKETS] {
        let mut passed = [0; BUCKETS];
        for (number, bucket) in self.0.iter().enumerate() {
            for (tag, _) in bucket.entries() {
                for before in 1..=past(number, tag) {
                    passed[(number + BUCKETS - before) % BUCKETS] += 1;
                }
            }
        }
        passed
    }
}

/// Distance from an entry's home to the bucket `number` that it is in.
#[inline]
fn past(number: usize, tag: u16) -> usize {
    number.wrapping_sub(tag.into()) % REACH
}
