//! A leaf of the table: 64 buckets next to each other, which split in two where they are full.
//!
//! An entry is in the bucket where it belongs or in one of the next few, round the end. The last bits of the number of the
//! bucket where it belongs are the last bits of its tag, so wherever it is, where it belongs can be told.

use super::arena::BlockId;
use super::bucket::{Bucket, EMPTY, SLOTS};

pub const BUCKETS: usize = 64;
/// Buckets from where an entry belongs to where it may be.
const REACH: usize = 1 << TAG_END;
/// Last bits of a tag that are those of its bucket's number.
pub const TAG_END: u32 = 2;
const IS_IN: &str = "an entry that is in";
/// In parts of 64: two leaves that are one again leave it no fuller.
const SPARSE: usize = 42;

#[derive(Clone, Copy, Debug)]
pub struct Leaf([Bucket; BUCKETS]);

/// Where an entry belongs in its leaf, and by what it is known there.
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

    /// The first entry of these that is `right`.
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

    /// False where all buckets within reach are full; nothing has changed.
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

    /// Takes out an entry that is in; true where its bucket and the one beside it are empty now, which in a leaf that is not
    /// sparse they hardly ever are.
    #[inline]
    pub fn take(&mut self, entry: Entry, id: BlockId) -> bool {
        let past = (0..REACH).find(|past| self.0[(entry.home + past) % BUCKETS].take(entry.tag, id)).expect(IS_IN);
        for before in 0..past {
            self.0[(entry.home + before) % BUCKETS].unpass();
        }
        let at = entry.home + past;
        self.bucket(at).is_empty() && self.bucket(at ^ 1).is_empty()
    }

    /// Gives an entry that is in another number.
    pub fn renumber(&mut self, entry: Entry, id: BlockId, to: BlockId) {
        let mut within = entry.home..entry.home + REACH;
        assert!(within.any(|at| self.0[at % BUCKETS].renumber(entry.tag, id, to)), "{IS_IN}");
    }

    /// Keeps the entries whose tag lacks a bit; gives the others, in a leaf of their own.
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

    /// Puts an entry that was `past` buckets beyond where it belongs where it was, or nearer.
    #[cold]
    fn settle(&mut self, number: usize, past: usize, tag: u16, id: BlockId) {
        let home = (number + BUCKETS - past) % BUCKETS;
        // Where the leaf's end is between them, the buckets there are still to come and need their room.
        let nearer = if home < number { 0 } else { past };
        let past = (nearer..=past).find(|past| self.0[(home + past) % BUCKETS].put(tag, id)).expect("it was there");
        self.pass(home, past);
    }

    /// Both leaves' entries in one; none where they would crowd it.
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
    /// How many entries each bucket says went past it.
    pub fn passed(&self) -> [u16; BUCKETS] {
        self.0.map(|bucket| bucket.passed())
    }

    /// The same by where the entries are.
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

/// How far beyond the bucket where it belongs an entry is that is in bucket `number`.
#[inline]
fn past(number: usize, tag: u16) -> usize {
    number.wrapping_sub(tag.into()) % REACH
}
