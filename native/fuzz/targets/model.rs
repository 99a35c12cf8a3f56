//! An index as sets, of which nothing is clever.

use cachefleet_native::digest::{Tier, digest};
use cachefleet_native::index::Operation;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub struct Model {
    held: HashMap<String, HashSet<(u64, usize)>>,
}

impl Model {
    pub fn apply(&mut self, worker: &str, operation: &Operation) {
        match operation {
            Operation::Stored { keys, tier, .. } => {
                let set = self.held.entry(worker.to_owned()).or_default();
                set.extend(keys.iter().map(|key| (*key, *tier as usize)));
            }
            Operation::Removed { keys, tier } => {
                if let Some(set) = self.held.get_mut(worker) {
                    set.retain(|(key, held)| *held != *tier as usize || !keys.contains(key));
                }
            }
            Operation::Cleared => {
                self.held.remove(worker);
            }
        }
    }

    pub fn blocks(&self, worker: &str) -> u64 {
        self.held.get(worker).map_or(0, |set| set.len() as u64)
    }

    pub fn all(&self) -> u64 {
        self.held.keys().map(|worker| self.blocks(worker)).sum()
    }

    /// How many of these a worker does not hold.
    pub fn lacking(&self, worker: &str, keys: &[u64], tier: Tier) -> u64 {
        keys.iter().filter(|key| !self.holds(worker, **key, tier)).count() as u64
    }

    pub fn digest(&self, worker: &str) -> u64 {
        let tiers = self.held.get(worker).into_iter().flatten();
        tiers.fold(0, |sum: u64, (key, tier)| sum.wrapping_add(digest(&[*key], Tier::ALL[*tier])))
    }

    pub fn depth(&self, worker: &str, keys: &[u64], tier: Tier) -> u32 {
        let depth = keys.iter().take_while(|key| self.holds(worker, **key, tier)).count();
        u32::try_from(depth).expect("a short prompt")
    }

    pub fn keys(&self) -> usize {
        self.held.values().flatten().collect::<HashSet<_>>().len()
    }

    pub fn share(&self, worker: &str) -> f64 {
        let count = |number: usize| f64::from(u32::try_from(number).expect("few"));
        let holders = |block| self.held.values().filter(|other| other.contains(block)).count();
        self.held.get(worker).into_iter().flatten().map(|block| 1.0 / count(holders(block))).sum()
    }

    fn holds(&self, worker: &str, key: u64, tier: Tier) -> bool {
        self.held.get(worker).is_some_and(|set| set.contains(&(key, tier as usize)))
    }
}
