//! Histories of operations, with questions between them, on an index and on the model.

use super::model::Model;
use super::tape::Tape;
use cachefleet_native::digest::Tier;
use cachefleet_native::index::{Asked, Full, Index, Limits, Operation, Walk, slices};
use cachefleet_native::mixing::splitmix64;
use std::borrow::Cow;

const WORKERS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Of each chain; chain 2 k + 1 has the first blocks of chain 2 k.
const LONGEST: usize = 300;

struct Play<'a> {
    tape: Tape<'a>,
    limits: Limits,
    index: Index,
    model: Model,
}

pub fn play(data: &[u8]) {
    let mut tape = Tape(data);
    let most = Limits::MOST_BYTES;
    let chosen = [(5, 1 << 20, most), (5, 700, most), (3, 1 << 20, most), (5, 1 << 20, 3 << 19)];
    let (workers, held, bytes) = chosen[usize::from(tape.below(4))];
    let limits = Limits { workers, held, bytes };
    let mut play = Play { tape, limits, index: Index::new(limits), model: Model::default() };
    while !play.tape.is_empty() {
        play.step();
    }
    play.compare();
}

impl Play<'_> {
    fn step(&mut self) {
        let worker = WORKERS[usize::from(self.tape.below(5))];
        match self.tape.below(12) {
            0..=4 => self.store(worker),
            5..=7 => {
                let (_, mut keys) = self.stretch();
                if self.tape.below(2) == 0 {
                    keys.reverse();
                }
                let tier = self.tier();
                self.happen(worker, &Operation::Removed { keys: Cow::Owned(keys), tier });
            }
            8 if self.tape.below(3) == 0 => self.happen(worker, &Operation::Cleared),
            8 => {
                self.index.forget(worker);
                self.model.apply(worker, &Operation::Cleared);
            }
            9 => self.compare(),
            _ => self.ask(),
        }
    }

    fn store(&mut self, worker: &str) {
        let (parent, keys) = self.stretch();
        let parent = if self.tape.below(4) == 0 { splitmix64(self.tape.byte().into()) } else { parent };
        let tier = self.tier();
        if !keys.contains(&parent) {
            self.happen(worker, &Operation::Stored { parent, keys: Cow::Owned(keys), tier });
        }
    }

    /// Applies an operation, in slices or as one; refused only where it must be, and then nothing has changed.
    fn happen(&mut self, worker: &str, operation: &Operation) {
        let wanted = match operation {
            Operation::Stored { keys, tier, .. } => self.model.lacking(worker, keys, *tier),
            _ => 0,
        };
        if let Err(full) = self.index.room_for(worker, &[operation], false) {
            return self.assert_full(full, worker, wanted);
        }
        if self.tape.below(2) == 0 {
            self.index.apply(worker, operation).expect("there is room");
        } else {
            for slice in slices(operation, 1 + usize::from(self.tape.below(70))) {
                self.index.apply_slice(worker, &slice).expect("there is room");
            }
        }
        self.model.apply(worker, operation);
        assert!(self.model.all() <= self.limits.held);
        assert_eq!(self.index.digest(worker), self.model.digest(worker));
    }

    fn assert_full(&self, full: Full, worker: &str, wanted: u64) {
        match full {
            Full::Blocks { limit, .. } => assert!(self.model.all() + wanted > limit),
            Full::Memory { bytes, limit } => {
                assert!(wanted > 0 && bytes == self.index.used() && limit == self.limits.bytes);
            }
            Full::Workers { limit, .. } => {
                assert!(self.index.slot(worker).is_none() && self.index.stats().held.len() >= limit);
            }
        }
        assert_eq!(self.index.digest(worker), self.model.digest(worker));
    }

    fn ask(&mut self) {
        let (tier, mut keys) = (self.tier(), self.stretch().1);
        if self.tape.below(3) == 0 {
            let (_, more) = self.stretch();
            keys.extend(more);
        }
        let asked = self.tape.byte();
        let slots = WORKERS.iter().enumerate().filter(|(bit, _)| asked >> bit & 1 == 1);
        let known: Vec<(&str, u32)> = slots.filter_map(|(_, name)| Some((*name, self.index.slot(name)?))).collect();
        let mut walk = Walk::default();
        self.index.walk(&mut walk, &Asked::new(known.iter().map(|(_, slot)| *slot)), &keys, tier);
        for (name, slot) in known {
            assert_eq!(walk.depth(slot), self.model.depth(name, &keys, tier), "{name}");
        }
    }

    fn compare(&self) {
        for (name, blocks) in self.index.stats().held {
            assert_eq!(blocks, self.model.blocks(&name), "{name}");
        }
        for name in WORKERS {
            assert_eq!(self.index.digest(name), self.model.digest(name), "{name}");
        }
        for (name, share) in self.index.shares() {
            assert!((share - self.model.share(name)).abs() < 1e-9 * (1.0 + share), "{name}");
        }
        // Of forgotten workers some may be left to sweep.
        assert!(self.index.stats().keys >= self.model.keys());
    }

    /// A part of a chain with the key before it.
    fn stretch(&mut self) -> (u64, Vec<u64>) {
        let chain = u64::from(self.tape.below(12));
        let start = usize::from(self.tape.byte());
        let most = if self.tape.below(2) == 0 { 4 } else { LONGEST - start };
        let len = 1 + usize::from(self.tape.byte()) % most;
        let key = |place: usize| {
            let shared = chain % 2 == 1 && place < 40;
            splitmix64((chain - u64::from(shared)) << 32 | place as u64).max(1)
        };
        (if start == 0 { 0 } else { key(start - 1) }, (start..start + len).map(key).collect())
    }

    fn tier(&mut self) -> Tier {
        Tier::ALL[usize::from(self.tape.below(8) == 0)]
    }
}
