//! Removes forgotten workers from holder sets, some blocks at each later operation.

use super::Index;

/// Runs visited with each frame, at least.
const RUNS: u32 = 16;
/// Blocks changed with each frame, at most: some ten microseconds of work.
const BLOCKS: usize = 512;
/// The same with each slice of a frame.
const SLICE_BLOCKS: usize = 64;
/// Blocks changed for each key of the frame, where that is more.
const PER_KEY: usize = 2;

/// A sweep under way: over all runs of one tier, then of the other.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Slots that were retired when it began; empty while there is nothing to do.
    mask: Vec<u64>,
    tier: usize,
    run: u32,
    /// Offset from which on that run is done; None where it is not begun. Blocks before it may move to lower offsets,
    /// never to higher ones.
    below: Option<u32>,
}

impl Index {
    /// Sweeps in proportion to a frame of `keys` keys.
    pub(super) fn sweep_with(&mut self, keys: usize) {
        self.sweep_in_step(BLOCKS.max(PER_KEY * keys));
    }

    pub(super) fn sweep_with_slice(&mut self, keys: usize) {
        self.sweep_in_step(SLICE_BLOCKS.max(PER_KEY * keys));
    }

    /// Sweeps until `enough` holds (true), or nothing is left to sweep (false).
    pub(super) fn sweep_until(&mut self, enough: impl Fn(&Self) -> bool) -> bool {
        while !enough(self) {
            if !self.workers.any_retired() {
                return false;
            }
            self.sweep_in_step(BLOCKS);
        }
        true
    }

    fn sweep_in_step(&mut self, blocks: usize) {
        if self.workers.any_retired() {
            let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
            self.sweep_some(RUNS.max(blocks / RUNS), blocks);
        }
    }

    fn sweep_some(&mut self, runs: u32, blocks: u32) {
        if self.sweep.mask.is_empty() {
            self.sweep.mask = self.workers.retired().to_vec();
        }
        let mut left = blocks;
        for _ in 0..runs {
            let Some(tier) = self.tiers.get_mut(self.sweep.tier) else {
                self.workers.free(&std::mem::take(&mut self.sweep).mask);
                break;
            };
            if self.sweep.run == tier.runs.len() {
                self.sweep.tier += 1;
                self.sweep.run = 0;
                continue;
            }
            let below = self.sweep.below.unwrap_or(u32::MAX);
            let swept = tier.sweep(&mut self.sets, self.sweep.run, below, left, &self.sweep.mask);
            self.held -= swept.holdings;
            self.sweep.below = (swept.rest > 0).then_some(swept.rest);
            self.sweep.run += u32::from(swept.rest == 0);
            left -= swept.blocks;
            if left == 0 {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::digest::Tier;
    use crate::index::{Index, Limits, Operation};
    use std::borrow::Cow;

    fn stored(key: u64) -> Operation<'static> {
        Operation::Stored { parent: 0, keys: Cow::Owned(vec![key]), tier: Tier::Device }
    }

    #[test]
    fn restarts_that_come_faster_than_sweeping_take_no_more_slots_than_twice_the_workers() {
        let mut index = Index::new(Limits { workers: 2, held: 1 << 20, bytes: Limits::MOST_BYTES });
        for key in 1..=2000 {
            index.apply("steady", &stored(key)).expect("there is room");
        }
        for _ in 0..200 {
            index.apply("restarts", &Operation::Cleared).expect("there is room");
            index.apply("restarts", &stored(3000)).expect("there is room");
            assert!(index.workers.occupied() <= 4);
        }
    }
}
