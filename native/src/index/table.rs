//! From block key to block number: a hash table in many small segments.
//!
//! Keys themselves are not kept here but in the arena, so a slot costs six bytes; a tag that agrees is verified there. A
//! search ends at the first bucket that nothing went past, so a removal leaves no tombstone.
//!
//! A segment doubles or halves by itself, and segments begin at different sizes, so their doublings are spread over time:
//! no operation ever moves more than one part in `SEGMENTS` of the entries. A bucket's number ends in the first bits of its
//! entries' tags, as many as there were doublings: so where an entry goes in the next one is read from its tag, not by
//! way of its key, which lies anywhere.

use super::arena::{Arena, BlockId};
use super::bucket::{Bucket, EMPTY, SLOTS};
use super::prefetch::prefetch;
use crate::mixing::fold;

const SEGMENT_BITS: u32 = 8;
const SEGMENTS: usize = 1 << SEGMENT_BITS;
const TAG_BITS: u32 = 16;
/// In parts of 64: beyond this share of used slots a segment doubles, below that it halves.
const FULL: usize = 54;
const SPARSE: usize = 20;
const SMALLEST: [u32; 4] = [4, 5, 6, 7];
/// Buckets from where an entry belongs to where it may be.
const REACH: usize = 16;
/// Doublings after which bucket numbers that end alike are farther apart than REACH.
const TELLING: u32 = 4;

/// Where a key belongs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spot(u64);

impl Spot {
    #[inline]
    fn segment(self) -> usize {
        usize::try_from(self.0 >> (64 - SEGMENT_BITS)).unwrap_or(0)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a part of the hash is cut out of it")]
    fn tag(self) -> u16 {
        (self.0 >> 32) as u16
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "less than the number of buckets")]
    fn home(self, smallest: u32, doublings: u32) -> usize {
        let first = ((self.0 & 0xFFFF_FFFF) * u64::from(smallest)) >> 32;
        (first << doublings | u64::from(tag_bits(self.tag(), doublings))) as usize
    }
}

/// How the numbers of buckets end in which entries with this tag belong.
#[inline]
fn tag_bits(tag: u16, doublings: u32) -> u32 {
    u32::from(tag) >> (TAG_BITS - doublings)
}

#[derive(Debug)]
struct Segment {
    buckets: Vec<Bucket>,
    used: usize,
    /// How many entries it takes before it doubles.
    limit: usize,
    smallest: u32,
    doublings: u32,
}

#[derive(Debug)]
pub struct Table {
    segments: Vec<Segment>,
    used: usize,
    secrets: [u64; 2],
}

impl Table {
    /// `secrets` decide where keys lie, so that nobody can choose keys that crowd one bucket.
    pub fn new(secrets: [u64; 2]) -> Self {
        let segment =
            |smallest: &u32| Segment { buckets: Vec::new(), used: 0, limit: 0, smallest: *smallest, doublings: 0 };
        Self { segments: SMALLEST.iter().cycle().take(SEGMENTS).map(segment).collect(), used: 0, secrets }
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn bytes(&self) -> usize {
        let buckets: usize = self.segments.iter().map(|segment| segment.buckets.len()).sum();
        buckets * size_of::<Bucket>() + SEGMENTS * size_of::<Segment>()
    }

    #[inline]
    pub fn spot(&self, key: u64) -> Spot {
        Spot(fold(key ^ self.secrets[0], self.secrets[1]))
    }

    /// Where a key belongs that will soon be looked for.
    #[inline]
    pub fn soon(&self, key: u64) -> Spot {
        let spot = self.spot(key);
        let segment = &self.segments[spot.segment()];
        if let Some(bucket) = segment.buckets.get(spot.home(segment.smallest, segment.doublings)) {
            prefetch(bucket);
        }
        spot
    }

    #[inline]
    pub fn find(&self, key: u64, arena: &Arena) -> Option<BlockId> {
        self.find_at(self.spot(key), key, arena)
    }

    #[inline]
    pub fn find_at(&self, spot: Spot, key: u64, arena: &Arena) -> Option<BlockId> {
        let segment = &self.segments[spot.segment()];
        let mut at = spot.home(segment.smallest, segment.doublings);
        loop {
            let bucket = segment.buckets.get(at)?;
            if let Some(id) = bucket.find(spot.tag(), |id| arena.key(id) == key) {
                return Some(id);
            }
            if bucket.passed() == 0 {
                return None;
            }
            at = after(at, segment.buckets.len());
        }
    }

    /// Adds a key whose block `id` has it already; false where it is in.
    #[inline]
    pub fn insert(&mut self, spot: Spot, key: u64, id: BlockId, arena: &Arena) -> bool {
        if self.find_at(spot, key, arena).is_some() {
            return false;
        }
        self.used += 1;
        let segment = &mut self.segments[spot.segment()];
        let home = spot.home(segment.smallest, segment.doublings);
        segment.used += 1;
        if segment.used > segment.limit || !segment.put(home, spot.tag(), id) {
            self.grow(spot, id, arena);
        }
        true
    }

    /// Takes out a key that is in, at block `id`.
    pub fn remove(&mut self, spot: Spot, id: BlockId, arena: &Arena) {
        let segment = &mut self.segments[spot.segment()];
        segment.take(spot, id);
        self.used -= 1;
        segment.used -= 1;
        if segment.doublings > 0 && segment.used * 64 < segment.buckets.len() * SLOTS * SPARSE {
            let fewer = segment.doublings - 1;
            self.resize(spot.segment(), fewer, arena);
        }
    }

    /// A key's block has moved.
    pub fn moved(&mut self, key: u64, from: BlockId, to: BlockId) {
        let spot = self.spot(key);
        self.segments[spot.segment()].renumber(spot, from, to);
    }

    #[cold]
    fn grow(&mut self, spot: Spot, id: BlockId, arena: &Arena) {
        let number = spot.segment();
        loop {
            let segment = &self.segments[number];
            let more = if segment.buckets.is_empty() { 0 } else { segment.doublings + 1 };
            self.resize(number, more, arena);
            let segment = &mut self.segments[number];
            if segment.put(spot.home(segment.smallest, segment.doublings), spot.tag(), id) {
                return;
            }
        }
    }

    /// Rebuilds a segment; with more doublings than asked for where entries would be too far from where they belong.
    fn resize(&mut self, number: usize, doublings: u32, arena: &Arena) {
        let old = &self.segments[number];
        let fresh = (doublings..=TAG_BITS).find_map(|doublings| {
            let buckets = (old.smallest << doublings) as usize;
            let mut fresh = Segment {
                buckets: vec![EMPTY; buckets],
                used: old.used,
                limit: buckets * SLOTS * FULL / 64,
                smallest: old.smallest,
                doublings,
            };
            self.refill(old, &mut fresh, arena).then_some(fresh)
        });
        self.segments[number] = fresh.expect("16 doublings hold more than an index may");
    }

    fn refill(&self, old: &Segment, fresh: &mut Segment, arena: &Arena) -> bool {
        let (smallest, doublings) = (fresh.smallest, fresh.doublings);
        old.buckets.iter().enumerate().all(|(at, bucket)| {
            bucket.entries().all(|(tag, id)| {
                let home = match old.first(at, tag) {
                    Some(first) => first << doublings | tag_bits(tag, doublings) as usize,
                    None => self.spot(arena.key(id)).home(smallest, doublings),
                };
                fresh.put(home, tag, id)
            })
        })
    }
}

impl Segment {
    /// The first part of the number of the bucket in which an entry belongs that is in bucket `at`, where that can be told:
    /// if the end of `at` is that of where it belongs, no other such bucket is within reach.
    #[inline]
    fn first(&self, at: usize, tag: u16) -> Option<usize> {
        let end = at & ((1 << self.doublings) - 1);
        (self.doublings >= TELLING && end == tag_bits(tag, self.doublings) as usize).then_some(at >> self.doublings)
    }

    /// False where all buckets within reach are full; nothing has changed.
    #[inline]
    fn put(&mut self, home: usize, tag: u16, id: BlockId) -> bool {
        self.buckets[home].put(tag, id) || self.put_beyond(home, tag, id)
    }

    #[cold]
    fn put_beyond(&mut self, home: usize, tag: u16, id: BlockId) -> bool {
        let mut at = home;
        for _ in 0..self.buckets.len().min(REACH) {
            if self.buckets[at].put(tag, id) {
                return true;
            }
            self.buckets[at].pass();
            at = after(at, self.buckets.len());
        }
        // Nothing went past after all.
        let mut at = home;
        for _ in 0..self.buckets.len().min(REACH) {
            self.buckets[at].unpass();
            at = after(at, self.buckets.len());
        }
        false
    }

    /// Takes out an entry that is in.
    #[inline]
    fn take(&mut self, spot: Spot, id: BlockId) {
        let mut at = spot.home(self.smallest, self.doublings);
        while !self.buckets[at].take(spot.tag(), id) {
            self.buckets[at].unpass();
            at = after(at, self.buckets.len());
        }
    }

    /// Gives an entry that is in another number.
    fn renumber(&mut self, spot: Spot, id: BlockId, to: BlockId) {
        let mut at = spot.home(self.smallest, self.doublings);
        while !self.buckets[at].renumber(spot.tag(), id, to) {
            at = after(at, self.buckets.len());
        }
    }
}

#[inline]
fn after(at: usize, buckets: usize) -> usize {
    if at + 1 == buckets { 0 } else { at + 1 }
}
