//! Block index: which worker holds which block. `tests/reference/block_index.py` says the same in plain sets.
//!
//! Layers, each knowing only those before it: `chunked`, `arena` (keys in pages), `pages`, `bucket`, `leaf` and `table`
//! (key to block), `sets` (interned holder sets), `spans` (holders of stretches of a run), `runs` (keys with their
//! spans), `tier` (all runs), `windows` (hits of several KV cache groups), `workers`, and here the index.
//! `docs/block-index.md` has a picture.

mod arena;
mod bucket;
mod chunked;
mod huge;
mod ingest;
mod leaf;
mod matching;
mod operation;
mod pages;
mod prefetch;
mod removals;
mod runs;
mod sets;
mod spans;
mod sweep;
mod table;
mod tier;
mod windows;
mod workers;

pub use ingest::slices;
pub use matching::{Asked, Walk};
pub use operation::{Operation, OperationError, Seen, check};
pub use removals::Removals;
pub use windows::{Rule, Strips, window_key};

use crate::digest;
use crate::reader::Key;
use sets::Sets;
use std::hash::{BuildHasher, RandomState};
use sweep::Sweep;
use tier::{Change, Tier};
use windows::Blocks;
use workers::Workers;

/// Bounds of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub workers: usize,
    /// (worker, key, tier) triples, those of forgotten workers not swept yet included.
    pub held: u64,
    /// Memory in use, as `Index::used` estimates it.
    pub bytes: usize,
}

impl Limits {
    pub const MOST_HELD: u64 = 1 << 32;
    /// Block numbers have 32 bits, and half of the numbers may be of pages that are free but scattered.
    pub const MOST_BYTES: usize = 1 << 33;
    pub const MOST_WORKERS: usize = 1 << 20;

    #[must_use]
    pub fn exceed_bounds(&self) -> bool {
        self.workers > Self::MOST_WORKERS || self.held > Self::MOST_HELD || self.bytes > Self::MOST_BYTES
    }
}

/// A bound is reached, and nothing was applied: the present number, and the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Blocks { held: u64, limit: u64 },
    Memory { bytes: usize, limit: usize },
    Workers { known: usize, limit: usize },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub held: Vec<(String, u64)>,
    pub keys: usize,
    pub bytes: usize,
}

#[derive(Debug)]
pub struct Index {
    limits: Limits,
    workers: Workers,
    sets: Sets,
    tiers: [Tier; 2],
    sweep: Sweep,
    /// Blocks of all workers, forgotten ones not swept yet included.
    held: u64,
}

impl Index {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self::with_secrets(limits, [random(), random()])
    }

    fn with_secrets(limits: Limits, secrets: [u64; 2]) -> Self {
        Self {
            limits,
            workers: Workers::default(),
            sets: Sets::default(),
            tiers: digest::Tier::ALL.map(|kind| Tier::new(kind, secrets)),
            sweep: Sweep::default(),
            held: 0,
        }
    }

    /// Applies one operation, which `check` has accepted.
    ///
    /// # Errors
    /// A bound is reached; nothing has changed.
    pub fn apply(&mut self, worker: &str, operation: &Operation) -> Result<(), Full> {
        self.room_for(worker, &[operation], false)?;
        self.apply_all(worker, &[operation])
    }

    /// The same for several.
    ///
    /// # Errors
    /// A bound is reached. Nothing has changed if it is that of one operation, or where `room_for` was asked before.
    pub fn apply_all(&mut self, worker: &str, operations: &[&Operation]) -> Result<(), Full> {
        for operation in operations {
            self.act(worker, operation)?;
        }
        self.sweep_with(operations.iter().map(|operation| operation.keys().len()).sum());
        Ok(())
    }

    /// The same for a slice of one; it sweeps less, because other threads may be waiting.
    ///
    /// # Errors
    /// A bound is reached; nothing has changed.
    pub fn apply_slice(&mut self, worker: &str, slice: &Operation) -> Result<(), Full> {
        self.act(worker, slice)?;
        self.sweep_with_slice(slice.keys().len());
        Ok(())
    }

    fn act(&mut self, worker: &str, operation: &Operation) -> Result<(), Full> {
        match operation {
            Operation::Stored { parent, keys, tier } => self.store(worker, *parent, keys, *tier)?,
            Operation::Removed { keys, tier } => self.remove(worker, keys, *tier),
            Operation::Cleared => self.forget(worker),
        }
        Ok(())
    }

    /// Forgets all that a worker holds, in constant time; sweeps do the rest.
    pub fn forget(&mut self, worker: &str) {
        self.workers.retire(worker);
    }

    /// The digest of all that a worker holds.
    #[must_use]
    pub fn digest(&self, worker: &str) -> u64 {
        let slot = self.workers.slot(worker);
        slot.map_or(0, |slot| self.workers.holdings(slot).digest)
    }

    /// How many (key, tier) a worker holds.
    #[must_use]
    pub fn held(&self, worker: &str) -> u64 {
        let slot = self.workers.slot(worker);
        slot.map_or(0, |slot| self.workers.holdings(slot).blocks)
    }

    /// How many of these are below the device.
    #[must_use]
    pub fn held_below(&self, worker: &str) -> u64 {
        let slot = self.workers.slot(worker);
        slot.map_or(0, |slot| self.workers.holdings(slot).below)
    }

    /// For each worker that holds anything, the sum over its blocks of 1 / number of their holders.
    pub fn shares(&self) -> impl Iterator<Item = (&str, f64)> {
        let shares = self.sets.shares(self.workers.live());
        self.workers.iter().map(move |(name, slot)| (name, shares[slot as usize])).filter(|(_, share)| *share > 0.0)
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        let held = |(name, slot): (&str, u32)| (name.to_owned(), self.workers.holdings(slot).blocks);
        Stats {
            held: self.workers.iter().map(held).collect(),
            keys: self.tiers.iter().map(Tier::keys).sum(),
            bytes: self.tiers.iter().map(Tier::bytes).sum::<usize>() + self.sets.bytes(),
        }
    }

    /// Bytes in use: those of its memory that nothing is free of. What is freed is used again, not given back.
    #[must_use]
    pub fn used(&self) -> usize {
        let used: usize = self.tiers.iter().map(|tier| tier.bytes() - tier.free_bytes()).sum();
        used + self.sets.bytes()
    }

    /// The slot of a worker; None while it holds nothing.
    #[must_use]
    pub fn slot(&self, worker: &str) -> Option<u32> {
        self.workers.slot(worker)
    }

    /// Changes whenever a worker's slot does; no two indexes of a process have a version in common.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.workers.version()
    }

    /// Finds how many of `keys` each asked worker holds in `tier` before the first it lacks.
    pub fn walk<K: Key>(&self, walk: &mut Walk, asked: &Asked, keys: &[K], tier: digest::Tier) {
        walk.begin(asked);
        walk.run(&self.tiers[tier as usize], &self.sets, keys);
    }

    /// After a walk on the device's blocks: gives each worker with a rule of its own the depth of its hit.
    pub fn settle<'r, K: Key>(
        &self,
        walk: &mut Walk,
        strips: &mut Strips,
        asked: impl Iterator<Item = (u32, &'r Rule)>,
        keys: &[K],
        usable: usize,
    ) {
        let tier = &self.tiers[digest::Tier::Device as usize];
        strips.settle(walk, &Blocks { tier, sets: &self.sets, keys }, asked, usable);
    }

    /// Whether any worker holds blocks below the device.
    #[must_use]
    pub fn has_host(&self) -> bool {
        self.tiers[digest::Tier::Host as usize].keys() > 0
    }

    /// How many of `keys` a worker holds below the device before the first it lacks there.
    #[must_use]
    pub fn loadable<K: Key>(&self, slot: u32, keys: &[K]) -> u32 {
        self.tiers[digest::Tier::Host as usize].prefix(&self.sets, slot, keys)
    }

    fn store(&mut self, worker: &str, parent: u64, keys: &[u64], tier: digest::Tier) -> Result<(), Full> {
        let slot = self.workers.slot(worker);
        self.make_room(slot, keys, tier)?;
        let slot = match slot {
            Some(slot) => slot,
            None => self.begin(worker)?,
        };
        let change = self.tiers[tier as usize].hold(&mut self.sets, slot, parent, keys);
        let holdings = self.workers.holdings_mut(slot);
        holdings.blocks += change.blocks;
        holdings.below += if tier == digest::Tier::Host { change.blocks } else { 0 };
        holdings.digest = holdings.digest.wrapping_add(change.digest);
        self.held += change.blocks;
        Ok(())
    }

    fn remove(&mut self, worker: &str, keys: &[u64], tier: digest::Tier) {
        let Some(slot) = self.workers.slot(worker) else {
            return;
        };
        let Change { blocks, digest } = self.tiers[tier as usize].lose(&mut self.sets, slot, keys);
        let holdings = self.workers.holdings_mut(slot);
        holdings.blocks -= blocks;
        holdings.below -= if tier == digest::Tier::Host { blocks } else { 0 };
        holdings.digest = holdings.digest.wrapping_sub(digest);
        self.held -= blocks;
    }

    fn make_room(&mut self, slot: Option<u32>, keys: &[u64], tier: digest::Tier) -> Result<(), Full> {
        if self.held + keys.len() as u64 <= self.limits.held {
            return Ok(());
        }
        let wanted = self.tiers[tier as usize].lacking(&self.sets, slot, keys);
        let fits = |index: &Self| index.held + wanted <= index.limits.held;
        let (held, limit) = (self.held, self.limits.held);
        if self.sweep_until(fits) { Ok(()) } else { Err(Full::Blocks { held, limit }) }
    }

    fn begin(&mut self, worker: &str) -> Result<u32, Full> {
        if self.workers.len() >= self.limits.workers {
            return Err(Full::Workers { known: self.workers.len(), limit: self.limits.workers });
        }
        // Or restarts that come faster than sweeping would make sets ever longer.
        self.sweep_until(|index| index.workers.occupied() < 2 * index.limits.workers);
        Ok(self.workers.begin(worker))
    }
}

/// A random number that is secret to this process.
fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}
