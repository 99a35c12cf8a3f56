//! Taking forgotten workers out of holder sets, a few blocks at each later operation.

use super::{Index, Operation};

/// Runs looked at with each operation.
const RUNS: u32 = 16;
/// Blocks changed with each operation: some ten microseconds' worth.
const BLOCKS: usize = 512;
/// The same with each slice of one.
const SLICE_BLOCKS: usize = 64;
/// Twice as many as there are keys where those are more: who stores again what a restart forgot leaves nothing behind.
const PER_KEY: usize = 2;

/// A sweep under way: over all runs of one tier, then of the other.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Slots that were retired when it began; none while there is nothing to do.
    mask: Vec<u64>,
    tier: usize,
    run: u32,
    /// From which offset on that run is done; none where it is not begun. What is before may move to lower ones, never to
    /// higher.
    below: Option<u32>,
}

impl Index {
    pub(super) fn sweep_with(&mut self, operation: &Operation, slice: bool) {
        if self.workers.any_retired() {
            let least = if slice { SLICE_BLOCKS } else { BLOCKS };
            let blocks = u32::try_from(least.max(PER_KEY * operation.keys().len())).unwrap_or(u32::MAX);
            self.sweep_some(RUNS.max(blocks / RUNS), blocks);
        }
    }

    /// Finishes the sweep under way, and one over what was retired since.
    pub(super) fn sweep_all(&mut self) {
        for _ in 0..2 {
            if self.workers.any_retired() {
                self.sweep_some(u32::MAX, u32::MAX);
            }
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
