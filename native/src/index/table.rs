//! Hash table from block key to block number, made of small leaves that split and merge one at a time.
//!
//! Keys are kept in the arena, not here, so a slot costs six bytes; a tag that agrees is verified there. A search ends
//! at the first bucket that no entry overflowed, so a removal leaves no tombstone.
//!
//! A segment lists its leaves by the first bits of their entries' tags; a leaf that needs fewer bits than the list has
//! is listed several times. A full leaf splits by the next bit of its entries' tags, so that no key has to be read. No
//! operation moves the entries of more than two leaves, however large the table. Segments begin with different numbers
//! of leaves, so that their leaves do not fill up and split at the same time.

use super::arena::{Arena, BlockId};
use super::bucket::Bucket;
use super::chunked::Chunked;
use super::leaf::{BUCKETS, Entry, Leaf, TAG_END};
use super::prefetch::prefetch;
use crate::mixing::fold;

const SEGMENT_BITS: u32 = 6;
const SEGMENTS: usize = 1 << SEGMENT_BITS;
const TAG_BITS: u32 = 16;
/// Leaves of a segment at first.
const SMALLEST: [u32; 4] = [4, 5, 6, 7];

/// Hash of a key, from which its segment, leaf and home bucket follow.
#[derive(Clone, Copy, Debug, Default)]
struct Spot(u64);

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
    fn entry(self) -> Entry {
        let tag = self.tag();
        let first = (self.0 >> 48) as usize % (BUCKETS >> TAG_END);
        Entry { home: (first << TAG_END) | (usize::from(tag) % (1 << TAG_END)), tag }
    }
}

/// A spot with its leaf, valid while the table has this shape.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ahead {
    spot: Spot,
    /// Shape in the upper half, leaf in the lower, `NO_LEAF` while its segment has none. One number fits a register.
    leaf: u64,
}

/// No leaf: larger than any number.
const NO_LEAF: u32 = u32::MAX;

/// The first bits of a tag.
#[inline]
fn first_bits(tag: u16, bits: u32) -> u32 {
    u32::from(tag) >> (TAG_BITS - bits)
}

#[derive(Debug)]
struct Segment {
    /// `smallest << bits` numbers of leaves; empty while the segment is.
    leaves: Vec<u32>,
    smallest: u32,
    /// How many first bits of tags tell leaves apart.
    bits: u32,
}

impl Segment {
    /// Index of a key's leaf in the list.
    #[inline]
    fn place(&self, spot: Spot) -> usize {
        let first = ((spot.0 & 0xFFFF_FFFF) * u64::from(self.smallest)) >> 32;
        #[expect(clippy::cast_possible_truncation, reason = "less than the number of leaves")]
        let place = (first << self.bits | u64::from(first_bits(spot.tag(), self.bits))) as usize;
        place
    }

    /// All indexes of the leaf at `place`.
    fn places(&self, place: usize) -> std::ops::Range<usize> {
        let leaf = self.leaves[place];
        let many = self.leaves.iter().filter(|other| **other == leaf).count();
        let start = place & !(many - 1);
        start..start + many
    }
}

#[derive(Debug)]
pub struct Table {
    segments: Vec<Segment>,
    leaves: Chunked<Leaf>,
    free: Vec<u32>,
    used: usize,
    /// Changes whenever entries get another leaf.
    shape: u32,
    secrets: [u64; 2],
}

impl Table {
    /// `secrets` seed the hash, so that nobody can choose keys that collide.
    pub fn new(secrets: [u64; 2]) -> Self {
        let segment = |smallest: &u32| Segment { leaves: Vec::new(), smallest: *smallest, bits: 0 };
        Self {
            segments: SMALLEST.iter().cycle().take(SEGMENTS).map(segment).collect(),
            leaves: Chunked::new(),
            free: Vec::new(),
            used: 0,
            shape: 0,
            secrets,
        }
    }

    pub fn len(&self) -> usize {
        self.used
    }

    pub fn bytes(&self) -> usize {
        let listed: usize = self.segments.iter().map(|segment| segment.leaves.len()).sum();
        self.leaves.bytes() + (listed + self.free.capacity()) * size_of::<u32>() + SEGMENTS * size_of::<Segment>()
    }

    /// Bytes of leaves that will be used again.
    pub fn free_bytes(&self) -> usize {
        self.free.len() * size_of::<Leaf>()
    }

    #[inline]
    fn spot(&self, key: u64) -> Spot {
        Spot(fold(key ^ self.secrets[0], self.secrets[1]))
    }

    /// Prefetches the bucket of a key that will be looked up soon; returns where it belongs.
    #[inline]
    pub fn soon(&self, key: u64) -> Ahead {
        let spot = self.spot(key);
        let leaf = self.leaf(spot);
        if let Some(leaf) = leaf {
            let bucket: &Bucket = self.leaves[leaf].bucket(spot.entry().home);
            prefetch(bucket);
        }
        Ahead { spot, leaf: u64::from(self.shape) << 32 | u64::from(leaf.unwrap_or(NO_LEAF)) }
    }

    /// The block that a key probably has, from its bucket alone.
    #[inline]
    pub fn likely(&self, ahead: Ahead) -> Option<BlockId> {
        let entry = ahead.spot.entry();
        self.leaves[self.leaf_of(ahead)?].bucket(entry.home).likely(entry.tag)
    }

    /// The same as `find`, where it was fetched ahead.
    #[inline]
    pub fn find_ahead(&self, ahead: Ahead, key: u64, arena: &Arena) -> Option<BlockId> {
        let leaf = self.leaf_of(ahead)?;
        self.leaves[leaf].find(ahead.spot.entry(), |id| arena.key(id) == key)
    }

    #[inline]
    pub fn find(&self, key: u64, arena: &Arena) -> Option<BlockId> {
        let spot = self.spot(key);
        let leaf = self.leaf(spot)?;
        self.leaves[leaf].find(spot.entry(), |id| arena.key(id) == key)
    }

    /// Adds a key, which the arena has at `id` already; false where the table has the key.
    #[inline]
    pub fn insert(&mut self, ahead: Ahead, key: u64, id: BlockId, arena: &Arena) -> bool {
        let spot = ahead.spot;
        let entry = spot.entry();
        let Some(number) = self.leaf_of(ahead) else {
            return self.begin(spot, id);
        };
        let leaf = &mut self.leaves[number];
        if leaf.find(entry, |id| arena.key(id) == key).is_some() {
            return false;
        }
        if !leaf.put(entry, id) {
            self.grow(spot, id);
        }
        self.used += 1;
        true
    }

    /// Removes a key that is in, at block `id`.
    pub fn remove(&mut self, ahead: Ahead, id: BlockId) {
        let number = self.leaf_of(ahead).expect("it is in");
        self.used -= 1;
        if self.leaves[number].take(ahead.spot.entry(), id) {
            self.shrink(ahead.spot);
        }
    }

    /// Changes the block number of a key that is in.
    pub fn moved(&mut self, key: u64, from: BlockId, to: BlockId) {
        let spot = self.spot(key);
        let number = self.leaf(spot).expect("it is in");
        self.leaves[number].renumber(spot.entry(), from, to);
    }

    #[inline]
    fn leaf_of(&self, ahead: Ahead) -> Option<u32> {
        let leaf = u32::try_from(ahead.leaf ^ u64::from(self.shape) << 32);
        leaf.map_or_else(|_| self.leaf(ahead.spot), |leaf| (leaf != NO_LEAF).then_some(leaf))
    }

    #[inline]
    fn leaf(&self, spot: Spot) -> Option<u32> {
        let segment = &self.segments[spot.segment()];
        segment.leaves.get(segment.place(spot)).copied()
    }

    /// Puts the first key into a segment.
    #[cold]
    fn begin(&mut self, spot: Spot, id: BlockId) -> bool {
        let leaves = (0..self.segments[spot.segment()].smallest).map(|_| self.take_leaf(&Leaf::EMPTY)).collect();
        self.segments[spot.segment()].leaves = leaves;
        self.shape = self.shape.wrapping_add(1);
        self.used += 1;
        let number = self.leaf(spot).expect("it has leaves now");
        self.leaves[number].put(spot.entry(), id)
    }

    /// Puts an entry into a leaf that has no room within its reach: splits it first.
    #[cold]
    fn grow(&mut self, spot: Spot, id: BlockId) {
        loop {
            self.split(spot);
            let number = self.leaf(spot).expect("it has leaves");
            if self.leaves[number].put(spot.entry(), id) {
                return;
            }
        }
    }

    fn split(&mut self, spot: Spot) {
        let segment = &mut self.segments[spot.segment()];
        let mut places = segment.places(segment.place(spot));
        if places.len() == 1 {
            assert!(segment.bits < TAG_BITS - TAG_END, "so many bits hold more than an index may");
            segment.leaves = segment.leaves.iter().flat_map(|leaf| [*leaf; 2]).collect();
            segment.bits += 1;
            places = 2 * places.start..2 * places.end;
        }
        // The bit after those that all its entries have in common.
        let bit = 1 << (TAG_BITS - 1 - segment.bits + places.len().ilog2());
        let number = segment.leaves[places.start];
        let other = self.leaves[number].split(bit);
        let other = self.take_leaf(&other);
        self.shape = self.shape.wrapping_add(1);
        self.segments[spot.segment()].leaves[places.start + places.len() / 2..places.end].fill(other);
    }

    /// Merges a leaf with the one that it was split from, where both have become sparse.
    #[cold]
    fn shrink(&mut self, spot: Spot) {
        let segment = &self.segments[spot.segment()];
        let places = segment.places(segment.place(spot));
        let pair = places.start & !(2 * places.len() - 1);
        let pair = pair..pair + 2 * places.len();
        if pair.len() > 1 << segment.bits {
            return;
        }
        let (first, second) = (segment.leaves[pair.start], segment.leaves[pair.end - 1]);
        let alike = segment.leaves[pair.clone()].iter().filter(|leaf| [first, second].contains(leaf)).count();
        if alike < pair.len() {
            return; // the other one has been split again
        }
        let Some(both) = self.leaves[first].merged(&self.leaves[second]) else {
            return;
        };
        self.leaves[first] = both;
        self.free.push(second);
        self.shape = self.shape.wrapping_add(1);
        let segment = &mut self.segments[spot.segment()];
        segment.leaves[pair].fill(first);
        if segment.leaves.as_chunks::<2>().0.iter().all(|[even, odd]| even == odd) {
            segment.leaves = segment.leaves.iter().copied().step_by(2).collect();
            segment.bits -= 1;
        }
    }

    fn take_leaf(&mut self, leaf: &Leaf) -> u32 {
        let Some(number) = self.free.pop() else {
            return self.leaves.push(*leaf);
        };
        self.leaves[number] = *leaf;
        number
    }
}

#[cfg(test)]
mod tests;
