//! Runs: sequences of keys that were stored one after another, with the workers that hold each part.
//!
//! A run is a sequence of live keys and of holes (key 0, without holders). That neighbours in a run are neighbours in a
//! prompt makes lookups fast; correctness does not depend on it, because every key is compared.

use super::arena::{Arena, BlockId, PAGE, Place};
use super::pages::{MOST, Pages};
use super::sets::{NOBODY, SetId, Sets};
use super::spans::{Piece, Span, Spans};
use super::table::{Ahead, Table};
use crate::reader::Key;

/// Longer chains go on in another run, which bounds what a change of one run can cost.
pub const MAX_RUN: u32 = MOST * PAGE;
/// A run is squeezed when it has more holes than this, and than one key in four.
const MANY_HOLES: u32 = 16;
/// Keys that are compared before asking whether any differs.
const STEP: usize = 16;
/// Keys that are prefetched before those that are compared.
const FETCHED: usize = 128;
/// Keys whose buckets are read ahead together.
pub const AHEAD: usize = 32;

/// One cache line.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub struct Run {
    pages: Pages,
    spans: Spans,
    len: u32,
    holes: u32,
}

const _: () = assert!(size_of::<Run>() == 64);

impl Run {
    pub fn len(&self) -> u32 {
        self.len
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
        let reach = (self.len - offset).min(keys.len().min(MAX_RUN as usize) as u32);
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
        let room = (MAX_RUN - self.len) as usize;
        let keys = &keys[..keys.len().min(room)];
        let start = self.len;
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
            if self.len.is_multiple_of(PAGE) {
                id = BlockId::new(self.pages.push(around.arena, number), 0);
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
        if self.len > start {
            around.sets.shift(NOBODY, set, self.len - start);
            self.spans.push(self.len, set);
        }
        (self.len - start) as usize
    }

    /// The number of its last block; 0 where it has none.
    fn last_id(&self) -> BlockId {
        self.len.checked_sub(1).map_or(BlockId(0), |last| self.id(last))
    }

    /// Removes the key beyond its end.
    fn unpush(&mut self, id: BlockId, arena: &mut Arena) {
        arena.set_key(id, 0);
        self.pages.shorten(self.len.div_ceil(PAGE), arena);
    }

    /// Puts keys into the holes from `offset` on, up to the first that some run has already; returns how many.
    pub fn fill(&mut self, offset: u32, keys: &[u64], set: SetId, around: &mut Around) -> usize {
        let mut at = offset;
        for key in keys {
            let spot = around.table.soon(*key);
            let hole = at < self.len && around.arena.key(self.id(at)) == 0;
            if !hole {
                break;
            }
            around.arena.set_key(self.id(at), *key);
            if !around.table.insert(spot, *key, self.id(at), around.arena) {
                around.arena.set_key(self.id(at), 0);
                break;
            }
            at += 1;
        }
        if at > offset {
            self.holes -= at - offset;
            around.sets.shift(NOBODY, set, at - offset);
            self.spans.rewrite(offset, at, |_| set);
        }
        (at - offset) as usize
    }

    /// Gives each piece of `from..to` the holders that `change` returns; blocks without holders are removed.
    pub fn change(
        &mut self,
        from: u32,
        to: u32,
        around: &mut Around,
        mut change: impl FnMut(&mut Sets, &Arena, &Run, Piece) -> SetId,
    ) {
        let mut held = std::mem::take(&mut self.spans);
        let mut died = 0;
        held.rewrite(from, to, |piece| {
            let set = change(around.sets, around.arena, self, piece);
            if set == NOBODY && piece.set != NOBODY {
                self.bury(piece, around);
                died += piece.len();
            }
            around.sets.shift(piece.set, set, piece.len());
            set
        });
        self.spans = held;
        self.holes += died;
        if died > 0 {
            self.trim(around.arena);
            if self.holes > MANY_HOLES && self.holes * 4 > self.len {
                self.squeeze(around);
            }
        }
    }

    fn bury(&self, piece: Piece, around: &mut Around) {
        let mut spots = [Ahead::default(); AHEAD];
        let mut start = piece.start;
        while start < piece.end {
            let end = piece.end.min((start / PAGE + 1) * PAGE);
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
    fn trim(&mut self, arena: &mut Arena) {
        while let Some(last) = self.spans().last()
            && last.set == NOBODY
        {
            let end = self.spans.pop();
            self.holes -= self.len - end;
            self.len = end;
        }
        self.shorten(arena);
    }

    /// Moves live blocks together, over the holes.
    fn squeeze(&mut self, around: &mut Around) {
        let spans = std::mem::take(&mut self.spans);
        let mut to = 0;
        let mut start = 0;
        for span in spans.as_slice() {
            if span.set != NOBODY {
                for from in start..span.end {
                    self.shift_block(from, to, around);
                    to += 1;
                }
                self.spans.push(to, span.set);
            }
            start = span.end;
        }
        self.len = to;
        self.holes = 0;
        self.shorten(around.arena);
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

    /// Frees pages beyond its length; the rest of the last page is zeros already.
    fn shorten(&mut self, arena: &mut Arena) {
        self.pages.shorten(self.len.div_ceil(PAGE), arena);
        if self.len == 0 {
            *self = Self::default();
        }
    }
}

/// The place after a block in its run.
pub fn after(place: Place) -> Place {
    Place { offset: place.offset + 1, ..place }
}
