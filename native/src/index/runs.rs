//! Runs: sequences of keys that were stored one after another, with the workers that hold each part.
//!
//! A run is a sequence of live keys and of holes: keys that nobody holds any more, which the table finds as before, so
//! that a prompt ends there without another look and a key that comes back has its place. The last key is live. That
//! neighbours in a run are neighbours in a prompt makes lookups fast; correctness does not depend on it, because every
//! key is compared.

use super::arena::{Arena, BlockId, PAGE, Place};
use super::pages::{MOST, Pages};
use super::sets::{NOBODY, SetId, Sets};
use super::spans::{Piece, Span, Spans, pieces};
use super::table::{Ahead, Table};
use crate::reader::Key;

/// Longer chains go on in another run, which bounds what a change of one run can cost.
pub const MAX_RUN: u32 = MOST * PAGE;
/// A run is squeezed when it has as many holes as its head has room for, and more than one key in four.
const MANY_HOLES: u32 = PAGE;
/// Keys that are compared before asking whether any differs.
const STEP: usize = 16;
/// Keys that are prefetched before those that are compared.
const FETCHED: usize = 512;
/// Keys whose buckets are read ahead together.
pub const AHEAD: usize = 32;

/// One cache line.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub struct Run {
    pages: Pages,
    spans: Spans,
    len: u16,
    holes: u16,
}

const _: () = assert!(size_of::<Run>() == 64);

impl Run {
    #[inline]
    pub fn len(&self) -> u32 {
        self.len.into()
    }

    /// How many of its keys nobody holds.
    #[inline]
    pub fn holes(&self) -> u32 {
        self.holes.into()
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn spans(&self) -> &[Span] {
        self.spans.as_slice()
    }

    /// Bytes of its list.
    pub fn bytes(&self) -> usize {
        self.spans.bytes()
    }

    /// The number of the block at `offset`.
    #[inline]
    pub fn id(&self, offset: u32) -> BlockId {
        BlockId::new(self.pages.get(offset / PAGE), offset)
    }

    /// The keys of `from..to`, in pieces that are contiguous in memory.
    #[inline]
    pub fn slices<'a>(&'a self, arena: &'a Arena, from: u32, to: u32) -> impl Iterator<Item = &'a [u64]> + 'a {
        self.pages.stretches(from / PAGE, to.div_ceil(PAGE)).map(move |stretch| {
            let start = stretch.number * PAGE;
            let (low, high) = (from.max(start) - start, to.min(start + stretch.pages * PAGE) - start);
            &arena.keys(stretch.page, stretch.pages)[low as usize..high as usize]
        })
    }

    /// How many of `keys` are here from `offset` on.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "at most the run's length")]
    pub fn common<K: Key>(&self, arena: &Arena, offset: u32, keys: &[K]) -> u32 {
        let reach = (self.len() - offset).min(keys.len().min(MAX_RUN as usize) as u32);
        let (mut same, mut fetched) = (0, 0);
        let mut ahead = self.pages.stretches(offset / PAGE, (offset + reach).div_ceil(PAGE));
        for slice in self.slices(arena, offset, offset + reach) {
            while fetched < same + FETCHED
                && let Some(stretch) = ahead.next()
            {
                arena.prefetch_keys(stretch.page, stretch.pages);
                fetched += (stretch.pages * PAGE) as usize;
            }
            let here = equal(slice, &keys[same..same + slice.len()]);
            same += here;
            if here < slice.len() {
                break;
            }
        }
        same as u32
    }

    /// Prefetches the first keys that `common` compares from `offset` on.
    #[inline]
    pub fn fetch(&self, arena: &Arena, offset: u32) {
        if let Some(stretch) = self.pages.stretches(offset / PAGE, self.len().div_ceil(PAGE)).next() {
            arena.prefetch_keys(stretch.page, stretch.pages);
        }
    }

    /// The same backwards: how many of `keys` are at `offset`, `offset - 1` and so on.
    #[expect(clippy::cast_possible_truncation, reason = "at most the run's length")]
    pub fn common_back(&self, arena: &Arena, offset: u32, keys: &[u64]) -> u32 {
        let at = (0..=offset).rev().map(|place| arena.key(self.id(place)));
        at.zip(keys).take_while(|(here, asked)| here == *asked).count() as u32
    }
}

/// How many keys are equal before the first that differs; both are of one length.
#[inline]
fn equal<K: Key>(keys: &[u64], asked: &[K]) -> usize {
    let steps = keys.as_chunks::<STEP>().0.iter().zip(asked.as_chunks::<STEP>().0);
    let from = STEP * steps.take_while(|(keys, asked)| !differ(keys, asked)).count();
    from + keys[from..].iter().zip(&asked[from..]).take_while(|(key, asked)| **key == asked.key()).count()
}

/// Whether any two keys differ; without an early exit, so that many are compared at once.
#[inline]
fn differ<K: Key>(keys: &[u64; STEP], asked: &[K; STEP]) -> bool {
    keys.iter().zip(asked).fold(0, |bits, (a, b)| bits | (a ^ b.key())) != 0
}

/// The structures that change together with runs.
pub struct Around<'a> {
    pub arena: &'a mut Arena,
    pub table: &'a mut Table,
    pub sets: &'a mut Sets,
}

impl Run {
    /// Appends keys, all held by `set`, up to the first that some run has already or to its greatest length; returns
    /// how many.
    pub fn append(&mut self, number: u32, keys: &[u64], set: SetId, around: &mut Around) -> usize {
        let room = (MAX_RUN - self.len()) as usize;
        let keys = &keys[..keys.len().min(room)];
        let start = self.len();
        let mut spots = [Ahead::default(); AHEAD];
        for (spot, key) in spots.iter_mut().zip(keys) {
            *spot = around.table.soon(*key);
        }
        let mut id = self.last_id();
        for (place, key) in keys.iter().enumerate() {
            let spot = spots[place % AHEAD];
            if let Some(later) = keys.get(place + AHEAD) {
                spots[place % AHEAD] = around.table.soon(*later);
            }
            if self.len().is_multiple_of(PAGE) {
                id = BlockId::new(self.pages.push(around.arena, number, self.len() / PAGE), 0);
            } else {
                id.0 += 1;
            }
            around.arena.set_key(id, *key);
            if !around.table.insert(spot, *key, id, around.arena) {
                self.unpush(id, around.arena);
                break;
            }
            self.len += 1;
        }
        if self.len() > start {
            around.sets.shift(NOBODY, set, self.len() - start);
            self.spans.push(self.len(), set);
        }
        (self.len() - start) as usize
    }

    /// The number of its last block; 0 where it has none.
    fn last_id(&self) -> BlockId {
        self.len().checked_sub(1).map_or(BlockId(0), |last| self.id(last))
    }

    /// Removes the key beyond its end.
    fn unpush(&mut self, id: BlockId, arena: &mut Arena) {
        arena.set_key(id, 0);
        self.shorten(self.len() + 1, arena);
    }

    /// Puts keys in place of those of the holes from `offset` on, up to the first that some run has already; returns
    /// how many.
    pub fn fill(&mut self, offset: u32, keys: &[u64], set: SetId, around: &mut Around) -> usize {
        let hole = pieces(self.spans(), offset, self.len()).next().filter(|piece| piece.set == NOBODY);
        let mut at = offset;
        for (key, place) in keys.iter().zip(offset..hole.map_or(offset, |piece| piece.end)) {
            if around.table.find(*key, around.arena).is_some() {
                break;
            }
            self.bury(place, place + 1, around);
            around.arena.set_key(self.id(place), *key);
            around.table.insert(around.table.soon(*key), *key, self.id(place), around.arena);
            at += 1;
        }
        if at > offset {
            self.holes -= short(at - offset);
            around.sets.shift(NOBODY, set, at - offset);
            self.spans.rewrite(offset, at, |_| set);
        }
        (at - offset) as usize
    }

    /// Gives each piece of `from..to` the holders that `change` returns; blocks without holders are holes, or removed.
    pub fn change(
        &mut self,
        from: u32,
        to: u32,
        around: &mut Around,
        mut change: impl FnMut(&mut Sets, &Arena, &Run, Piece) -> SetId,
    ) {
        let mut held = std::mem::take(&mut self.spans);
        let (mut died, mut revived) = (0, 0);
        held.rewrite(from, to, |piece| {
            let set = change(around.sets, around.arena, self, piece);
            match (piece.set == NOBODY, set == NOBODY) {
                (false, true) => died += piece.len(),
                (true, false) => revived += piece.len(),
                _ => {}
            }
            around.sets.shift(piece.set, set, piece.len());
            set
        });
        self.spans = held;
        self.holes = short(self.holes() + died - revived);
        if died > 0 {
            self.trim(around);
            if self.holes() >= MANY_HOLES && self.holes() * 4 > self.len() {
                self.squeeze(around);
            }
        }
    }

    /// Removes the keys of `start..to`, which nobody holds.
    fn bury(&self, mut start: u32, to: u32, around: &mut Around) {
        let mut spots = [Ahead::default(); AHEAD];
        while start < to {
            let end = to.min((start / PAGE + 1) * PAGE);
            let page = self.pages.get(start / PAGE);
            let batch = &mut spots[..(end - start) as usize];
            for (spot, offset) in batch.iter_mut().zip(start..end) {
                *spot = around.table.soon(around.arena.key(BlockId::new(page, offset)));
            }
            for (spot, offset) in batch.iter().zip(start..end) {
                around.table.remove(*spot, BlockId::new(page, offset));
                around.arena.set_key(BlockId::new(page, offset), 0);
            }
            start = end;
        }
    }

    /// Drops holes at the end.
    fn trim(&mut self, around: &mut Around) {
        let before = self.len();
        while let Some(last) = self.spans().last()
            && last.set == NOBODY
        {
            let end = self.spans.pop();
            self.bury(end, self.len(), around);
            self.holes -= self.len - short(end);
            self.len = short(end);
        }
        self.shorten(before, around.arena);
    }

    /// Moves live blocks together, over the holes.
    fn squeeze(&mut self, around: &mut Around) {
        let (spans, before) = (std::mem::take(&mut self.spans), self.len());
        let mut to = 0;
        let mut start = 0;
        for span in spans.as_slice() {
            if span.set == NOBODY {
                self.bury(start, span.end, around);
            } else {
                for from in start..span.end {
                    self.shift_block(from, to, around);
                    to += 1;
                }
                self.spans.push(to, span.set);
            }
            start = span.end;
        }
        self.len = short(to);
        self.holes = 0;
        self.shorten(before, around.arena);
    }

    fn shift_block(&mut self, from: u32, to: u32, around: &mut Around) {
        if from != to {
            let (old, new) = (self.id(from), self.id(to));
            let key = around.arena.key(old);
            around.arena.set_key(new, key);
            around.arena.set_key(old, 0);
            around.table.moved(key, old, new);
        }
    }

    /// Frees pages beyond its length, which was `before`; the rest of the last page is zeros already.
    fn shorten(&mut self, before: u32, arena: &mut Arena) {
        self.pages.shorten(before.div_ceil(PAGE), self.len().div_ceil(PAGE), arena);
        if self.len == 0 {
            *self = Self::default();
        }
    }
}

/// A length or number of holes, as a run keeps it.
#[expect(clippy::cast_possible_truncation, reason = "at most MAX_RUN")]
fn short(blocks: u32) -> u16 {
    const { assert!(MAX_RUN <= u16::MAX as u32) };
    blocks as u16
}

/// The place after a block in its run.
pub fn after(place: Place) -> Place {
    Place { offset: place.offset + 1, ..place }
}
