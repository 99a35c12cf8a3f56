//! The indexes under test, behind one interface.

use cachefleet_native::digest::Tier;
use cachefleet_native::index::{Asked, Index, Limits, Operation, Walk};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use radix_tree::{Config, HolderId, Overlap, OverlapScratch, RadixTree};
use std::borrow::Cow;
use std::collections::HashMap;

/// An index that is told of events and asked for depths.
pub trait Side {
    const NAME: &'static str;
    fn new(workers: u32) -> Self;
    fn store(&mut self, worker: u32, parent: u64, keys: &[u64]);
    fn remove(&mut self, worker: u32, keys: &[u64]);
    /// Matches a prompt; the sum of all workers' depths, so that nothing is optimised away.
    fn ask(&mut self, keys: &[u64]) -> u64;
    /// The depths of the last prompt.
    fn depths(&mut self, keys: &[u64]) -> HashMap<u32, u32>;
}

pub struct Ours {
    index: Index,
    names: Vec<String>,
    asked: Asked,
    walk: Walk,
    /// Of the workers that hold anything, in the order of `workers`.
    slots: Vec<u32>,
    workers: Vec<u32>,
}

impl Side for Ours {
    const NAME: &'static str = "cachefleet";

    fn new(workers: u32) -> Self {
        let limits = Limits { workers: 4096, held: Limits::MOST_HELD };
        let names = (0..workers).map(|worker| format!("worker-{worker}")).collect();
        let (asked, walk) = (Asked::default(), Walk::default());
        Self { index: Index::new(limits), names, asked, walk, slots: Vec::new(), workers: Vec::new() }
    }

    fn store(&mut self, worker: u32, parent: u64, keys: &[u64]) {
        let operation = Operation::Stored { parent, keys: Cow::Borrowed(keys), tier: Tier::Device };
        self.index.apply(&self.names[worker as usize], &operation).expect("within the limits");
        if let Some(slot) = self.index.slot(&self.names[worker as usize])
            && !self.slots.contains(&slot)
        {
            self.slots.push(slot);
            self.workers.push(worker);
            self.asked = Asked::new(self.slots.iter().copied());
        }
    }

    fn remove(&mut self, worker: u32, keys: &[u64]) {
        let operation = Operation::Removed { keys: Cow::Borrowed(keys), tier: Tier::Device };
        self.index.apply(&self.names[worker as usize], &operation).expect("a removal fits");
    }

    fn ask(&mut self, keys: &[u64]) -> u64 {
        self.index.walk(&mut self.walk, &self.asked, keys, Tier::Device);
        self.slots.iter().map(|slot| u64::from(self.walk.depth(*slot))).sum()
    }

    fn depths(&mut self, keys: &[u64]) -> HashMap<u32, u32> {
        self.ask(keys);
        let depths = self.workers.iter().zip(&self.slots).map(|(worker, slot)| (*worker, self.walk.depth(*slot)));
        depths.filter(|(_, depth)| *depth > 0).collect()
    }
}

/// The chain index of SMG's gateway.
pub struct Chains {
    index: ChainIndex,
    ids: Vec<u32>,
    maps: Vec<ChainBlockMap>,
    blocks: Vec<StoredBlock>,
    hashes: Vec<SequenceHash>,
}

impl Side for Chains {
    const NAME: &'static str = "kv-index";

    fn new(workers: u32) -> Self {
        let index = ChainIndex::with_max_workers(workers.max(64) as usize);
        let name = |worker| format!("worker-{worker}");
        let ids = (0..workers).map(|worker| index.intern_worker(&name(worker)).expect("a slot is free")).collect();
        let maps = (0..workers).map(|_| ChainBlockMap::new()).collect();
        Self { index, ids, maps, blocks: Vec::new(), hashes: Vec::new() }
    }

    fn store(&mut self, worker: u32, parent: u64, keys: &[u64]) {
        self.blocks.clear();
        let block = |key: &u64| StoredBlock { seq_hash: SequenceHash(*key), content_hash: ContentHash(*key) };
        self.blocks.extend(keys.iter().map(block));
        let parent = (parent != 0).then_some(SequenceHash(parent));
        let place = worker as usize;
        self.index.apply_stored(self.ids[place], &self.blocks, parent, &mut self.maps[place]).expect("a known parent");
    }

    fn remove(&mut self, worker: u32, keys: &[u64]) {
        self.hashes.clear();
        self.hashes.extend(keys.iter().map(|key| SequenceHash(*key)));
        let place = worker as usize;
        self.index.apply_removed(self.ids[place], &self.hashes, &mut self.maps[place]);
    }

    fn ask(&mut self, keys: &[u64]) -> u64 {
        let mut sum = 0;
        self.index.score_into(keys, |key| *key, false, |_, depth| sum += u64::from(depth));
        sum
    }

    fn depths(&mut self, keys: &[u64]) -> HashMap<u32, u32> {
        let mut depths = HashMap::new();
        self.index.score_into(
            keys,
            |key| *key,
            false,
            |worker, depth| {
                depths.insert(worker, depth);
            },
        );
        let numbers: HashMap<u32, u32> = (0..).zip(&self.ids).map(|(worker, id)| (*id, worker)).collect();
        depths.into_iter().map(|(id, depth)| (numbers[&id], depth)).collect()
    }
}

/// SMG's radix tree for a fleet-wide index service.
pub struct Radix {
    tree: RadixTree,
    holders: Vec<HolderId>,
    blocks: Vec<(u64, u64)>,
    scratch: OverlapScratch,
    out: Vec<Overlap>,
}

impl Side for Radix {
    const NAME: &'static str = "smg-radix-tree";

    fn new(workers: u32) -> Self {
        let mut tree = RadixTree::new(Config::default());
        let holders = (0..workers).map(|worker| tree.create_holder(&format!("worker-{worker}"))).collect();
        Self { tree, holders, blocks: Vec::new(), scratch: OverlapScratch::default(), out: Vec::new() }
    }

    fn store(&mut self, worker: u32, parent: u64, keys: &[u64]) {
        self.blocks.clear();
        self.blocks.extend(keys.iter().map(|key| (*key, *key)));
        let parent = (parent != 0).then_some(parent);
        self.tree.store(self.holders[worker as usize], parent, &self.blocks).expect("a known parent");
    }

    fn remove(&mut self, worker: u32, keys: &[u64]) {
        self.tree.remove(self.holders[worker as usize], keys);
    }

    fn ask(&mut self, keys: &[u64]) -> u64 {
        self.tree.overlap(keys, &mut self.scratch, &mut self.out);
        self.out.iter().map(|row| u64::from(row.depth)).sum()
    }

    fn depths(&mut self, keys: &[u64]) -> HashMap<u32, u32> {
        self.ask(keys);
        let numbers: HashMap<HolderId, u32> = (0..).zip(&self.holders).map(|(worker, id)| (*id, worker)).collect();
        self.out.iter().map(|row| (numbers[&row.holder], row.depth)).filter(|(_, depth)| *depth > 0).collect()
    }
}
