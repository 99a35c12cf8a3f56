//! All blocks of one tier: runs of keys, and the table that finds each of them.

use super::arena::{Arena, HEAD_BYTES, Place};
use super::chunked::Chunked;
use super::prefetch::prefetch;
use super::runs::{Around, Run, after};
use super::sets::{SetId, Sets};
use super::spans::pieces;
use super::table::Table;
use crate::digest::{self, digest};
use crate::reader::Key;

#[derive(Debug)]
pub struct Tier {
    kind: digest::Tier,
    pub(super) arena: Arena,
    pub(super) table: Table,
    pub(super) runs: Chunked<Run>,
    free: Vec<u32>,
    /// Bytes of all runs' lists.
    beside: usize,
    /// Keys in runs that nobody holds.
    holes: usize,
}

/// Growth or shrinkage of a worker's holdings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub blocks: u64,
    pub digest: u64,
}

/// What a sweep did in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub blocks: u32,
    pub holdings: u64,
    /// The offset up to which the run is still to be swept.
    pub rest: u32,
}

impl Change {
    fn add(&mut self, keys: &[u64], tier: digest::Tier) {
        self.blocks += keys.len() as u64;
        self.digest = self.digest.wrapping_add(digest(keys, tier));
    }
}

impl Tier {
    pub fn new(kind: digest::Tier, secrets: [u64; 2]) -> Self {
        Self {
            kind,
            arena: Arena::new(),
            table: Table::new(secrets),
            runs: Chunked::new(),
            free: Vec::new(),
            beside: 0,
            holes: 0,
        }
    }

    pub fn keys(&self) -> usize {
        self.table.len() - self.holes
    }

    pub fn bytes(&self) -> usize {
        self.arena.bytes() + self.table.bytes() + self.runs.bytes() + self.beside
    }

    /// Of these, bytes that will be used again.
    pub fn free_bytes(&self) -> usize {
        let runs = self.free.len() * (size_of::<Run>() + HEAD_BYTES);
        self.arena.free_bytes() + self.table.free_bytes() + runs
    }

    #[inline]
    pub fn find(&self, key: u64) -> Option<Place> {
        self.table.find(key, &self.arena).map(|id| self.arena.place(id))
    }

    /// Prefetches what is read of a key that will be looked up soon: its bucket, its block, and its run.
    #[inline]
    pub fn fetch(&self, key: u64) {
        if let Some(id) = self.table.likely(self.table.soon(key)) {
            self.arena.prefetch_owner(id);
            if let Some(run) = id.headed() {
                prefetch(&self.runs[run]);
            }
        }
    }

    /// Records that a worker holds `keys`, all different and none of them 0; `parent` is the key before, 0 for none.
    pub fn hold(&mut self, sets: &mut Sets, slot: u32, parent: u64, keys: &[u64]) -> Change {
        let mut change = Change::default();
        let mut last = if parent == 0 { None } else { self.find(parent) };
        let mut rest = keys;
        while let Some(key) = rest.first() {
            let done = if let Some(place) = self.find(*key) {
                let same = self.runs[place.run].common(&self.arena, place.offset, rest);
                self.gain(sets, slot, place, same, &mut change);
                last = Some(Place { offset: place.offset + same - 1, ..place });
                same as usize
            } else {
                let (done, place) = self.put(sets, slot, last, rest);
                change.add(&rest[..done], self.kind);
                last = Some(place);
                done
            };
            rest = &rest[done..];
        }
        change
    }

    /// Records that a worker does not hold `keys`, in any order, whether it did or not.
    pub fn lose(&mut self, sets: &mut Sets, slot: u32, keys: &[u64]) -> Change {
        let mut change = Change::default();
        let mut rest = keys;
        while let Some(key) = rest.first() {
            let Some(place) = self.find(*key) else {
                rest = &rest[1..];
                continue;
            };
            let run = &self.runs[place.run];
            let ahead = run.common(&self.arena, place.offset, rest);
            let back = run.common_back(&self.arena, place.offset, if ahead > 1 { &[] } else { rest });
            let (from, to) = if ahead > 1 {
                (place.offset, place.offset + ahead)
            } else {
                (place.offset + 1 - back, place.offset + 1)
            };
            self.release(sets, slot, place.run, from..to, &mut change);
            rest = &rest[(to - from) as usize..];
        }
        change
    }

    /// How many of `keys` a worker holds before the first it lacks.
    #[expect(clippy::cast_possible_truncation, reason = "callers bound a prompt's blocks")]
    pub fn prefix<K: Key>(&self, sets: &Sets, slot: u32, keys: &[K]) -> u32 {
        let mut depth = 0;
        while let Some(place) = keys.get(depth).and_then(|key| self.find(key.key())) {
            let run = &self.runs[place.run];
            let same = run.common(&self.arena, place.offset, &keys[depth..]);
            let mut lacked = pieces(run.spans(), place.offset, place.offset + same);
            if let Some(piece) = lacked.find(|piece| !sets.has(piece.set, slot)) {
                return depth as u32 + (piece.start - place.offset);
            }
            depth += same as usize;
        }
        depth as u32
    }

    /// How many of `keys` a worker does not hold.
    pub fn lacking(&self, sets: &Sets, slot: Option<u32>, keys: &[u64]) -> u64 {
        let Some(slot) = slot else {
            return keys.len() as u64;
        };
        self.count_unless(keys, |set| sets.has(set, slot))
    }

    /// How many of `keys` no worker of a mask holds.
    pub fn unheld(&self, sets: &Sets, mask: &[u64], keys: &[u64]) -> u64 {
        self.count_unless(keys, |set| sets.count_in(set, mask) > 0)
    }

    /// How many of `keys` have no holders, or a set of them that is not `as_asked`.
    fn count_unless(&self, keys: &[u64], as_asked: impl Fn(SetId) -> bool) -> u64 {
        let holds = |key: u64| {
            let Some(place) = self.find(key) else {
                return false;
            };
            let mut here = pieces(self.runs[place.run].spans(), place.offset, place.offset + 1);
            here.any(|piece| as_asked(piece.set))
        };
        keys.iter().filter(|key| !holds(**key)).count() as u64
    }

    /// Removes the workers of `mask` from the last `most` blocks of a run before offset `below`.
    pub fn sweep(&mut self, sets: &mut Sets, run: u32, below: u32, most: u32, mask: &[u64]) -> Swept {
        let mut swept = Swept::default();
        let to = self.runs[run].len().min(below);
        if self.runs[run].spans().iter().all(|span| sets.count_in(span.set, mask) == 0) || to == 0 {
            return swept;
        }
        swept.rest = to.saturating_sub(most);
        swept.blocks = to - swept.rest;
        self.with_run(run, sets, |run, around| {
            run.change(swept.rest, to, around, |sets, _, _, piece| {
                swept.holdings += u64::from(sets.count_in(piece.set, mask)) * u64::from(piece.len());
                sets.minus(piece.set, mask)
            });
        });
        swept
    }

    /// Puts keys, the first of them unknown, where they follow `last`, else into a new run, up to one that is known;
    /// returns how many, and the last one's place.
    fn put(&mut self, sets: &mut Sets, slot: u32, last: Option<Place>, keys: &[u64]) -> (usize, Place) {
        let set = SetId::solo(slot);
        let mut done = 0;
        if let Some(next) = last.map(after) {
            self.with_run(next.run, sets, |run, around| {
                done = if next.offset == run.len() {
                    run.append(next.run, keys, set, around)
                } else {
                    run.fill(next.offset, keys, set, around)
                };
            });
            if done > 0 {
                return (done, end(next, done));
            }
        }
        let run = self.new_run();
        self.with_run(run, sets, |kept, around| done = kept.append(run, keys, set, around));
        (done, end(Place { run, offset: 0 }, done))
    }

    fn gain(&mut self, sets: &mut Sets, slot: u32, place: Place, blocks: u32, change: &mut Change) {
        let kind = self.kind;
        self.with_run(place.run, sets, |run, around| {
            let (from, to) = (place.offset, place.offset + blocks);
            run.change(from, to, around, |sets, arena, run, piece| {
                let set = sets.with(piece.set, slot);
                if set != piece.set {
                    for keys in run.slices(arena, piece.start, piece.end) {
                        change.add(keys, kind);
                    }
                }
                set
            });
        });
    }

    fn release(&mut self, sets: &mut Sets, slot: u32, run: u32, blocks: std::ops::Range<u32>, change: &mut Change) {
        let kind = self.kind;
        self.with_run(run, sets, |run, around| {
            run.change(blocks.start, blocks.end, around, |sets, arena, run, piece| {
                let set = sets.without(piece.set, slot);
                if set != piece.set {
                    for keys in run.slices(arena, piece.start, piece.end) {
                        change.add(keys, kind);
                    }
                }
                set
            });
        });
    }

    fn new_run(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| self.runs.push(Run::default()))
    }

    /// Changes one run; a run that has become empty is free for other keys.
    fn with_run(&mut self, number: u32, sets: &mut Sets, act: impl FnOnce(&mut Run, &mut Around)) {
        let run = &mut self.runs[number];
        let mut around = Around { arena: &mut self.arena, table: &mut self.table, sets };
        let (bytes, holes) = (run.bytes(), run.holes());
        act(run, &mut around);
        self.beside = self.beside - bytes + run.bytes();
        self.holes = self.holes - holes as usize + run.holes() as usize;
        if run.is_empty() {
            self.free.push(number);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "at most a run's length")]
fn end(from: Place, blocks: usize) -> Place {
    Place { offset: from.offset + blocks as u32 - 1, ..from }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 100;

    struct Play {
        tier: Tier,
        sets: Sets,
    }

    impl Play {
        /// One worker that holds keys 1 to `BLOCKS` after each other, but for those of `holes`.
        fn with_holes(holes: std::ops::Range<u64>) -> Self {
            let (tier, sets) =
                (Tier::new(digest::Tier::Device, [0x9E37_79B9_7F4A_7C15, 0xD1B5_4A32_D192_ED03]), Sets::default());
            let mut play = Self { tier, sets };
            play.hold(0, &(1..=BLOCKS).collect::<Vec<_>>());
            let holes: Vec<u64> = holes.collect();
            play.tier.lose(&mut play.sets, 0, &holes);
            play
        }

        fn hold(&mut self, parent: u64, keys: &[u64]) -> u64 {
            self.tier.hold(&mut self.sets, 0, parent, keys).blocks
        }

        fn prefix(&self, keys: &[u64]) -> u32 {
            self.tier.prefix(&self.sets, 0, keys)
        }
    }

    fn place(offset: u32) -> Place {
        Place { run: 0, offset }
    }

    #[test]
    fn a_key_that_nobody_holds_keeps_its_place_within_a_run_and_counts_for_nothing() {
        let mut play = Play::with_holes(50..53);

        assert_eq!(play.tier.find(50), Some(place(49)));
        assert_eq!(play.tier.keys(), 97);
        assert_eq!(play.prefix(&(1..=BLOCKS).collect::<Vec<_>>()), 49);
        assert_eq!(play.hold(0, &[50, 51, 52]), 3);
        assert_eq!(play.tier.find(52), Some(place(51)));
        assert_eq!(play.tier.keys(), 100);
        assert_eq!(play.prefix(&(1..=BLOCKS).collect::<Vec<_>>()), 100);
    }

    #[test]
    fn other_keys_after_the_same_parent_take_the_places_of_those_that_nobody_holds() {
        let mut play = Play::with_holes(50..53);

        assert_eq!(play.hold(49, &[500, 501]), 2);
        assert_eq!(play.tier.find(500), Some(place(49)));
        assert_eq!([50, 51].map(|key| play.tier.find(key)), [None; 2]);
        assert_eq!(play.tier.find(52), Some(place(51)));
        assert_eq!(play.prefix(&(1..50).chain([500, 501, 52]).collect::<Vec<_>>()), 51);
        assert_eq!(play.hold(501, &[50, 52]), 2);
        assert_eq!(play.prefix(&(1..50).chain([500, 501, 50]).collect::<Vec<_>>()), 52);
        assert_eq!(play.tier.keys(), 101);
    }

    #[test]
    fn what_nobody_holds_is_gone_at_a_runs_end_and_where_it_is_too_much() {
        let mut play = Play::with_holes(50..53);
        play.tier.lose(&mut play.sets, 0, &(53..=BLOCKS).collect::<Vec<_>>());
        assert_eq!(play.tier.table.len(), 49);

        let play = Play::with_holes(10..40);
        assert_eq!((play.tier.table.len(), play.tier.keys()), (70, 70));
        assert_eq!(play.tier.find(40), Some(place(9)));

        let play = Play::with_holes(1..BLOCKS + 1);
        assert_eq!((play.tier.table.len(), play.tier.keys()), (0, 0));
    }
}
