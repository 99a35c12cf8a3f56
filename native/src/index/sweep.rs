//! Taking forgotten workers out of holder sets, a few runs at each later operation.

use super::Index;

/// Runs looked at with each operation.
const RUNS: u32 = 16;
/// Holdings taken out with each operation, more or less: a run is swept whole.
const HOLDINGS: u64 = 8192;

/// A sweep under way: over all runs of one tier, then of the other.
#[derive(Debug, Default)]
pub struct Sweep {
    /// Slots that were retired when it began; none while there is nothing to do.
    mask: Vec<u64>,
    tier: usize,
    run: u32,
}

impl Index {
    pub(super) fn sweep_a_little(&mut self) {
        if self.workers.any_retired() {
            self.sweep_some(RUNS, HOLDINGS);
        }
    }

    /// Finishes the sweep under way, and one over what was retired since.
    pub(super) fn sweep_all(&mut self) {
        for _ in 0..2 {
            if self.workers.any_retired() {
                self.sweep_some(u32::MAX, u64::MAX);
            }
        }
    }

    fn sweep_some(&mut self, runs: u32, holdings: u64) {
        if self.sweep.mask.is_empty() {
            self.sweep.mask = self.workers.retired().to_vec();
        }
        let mut gone = 0;
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
            gone += tier.sweep(&mut self.sets, self.sweep.run, &self.sweep.mask);
            self.sweep.run += 1;
            if gone > holdings {
                break;
            }
        }
        self.held -= gone;
    }
}
