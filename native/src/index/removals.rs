//! The last changes of a worker's blocks, kept as received, to tell why a block is gone.

use super::{Operation, Seen};
use crate::digest::Tier;
use crate::frame::{Frame, Kind};
use std::collections::{HashSet, VecDeque};

/// Delta frames kept of one worker, in bytes: some 8,000 blocks.
pub const MAX_BYTES: usize = 64 * 1024;

/// The last Delta frames of one worker; times in seconds on one clock. Frames are decoded only by `lost`.
#[derive(Debug)]
pub struct Removals {
    /// When its epoch began.
    pub began: f64,
    deltas: VecDeque<(f64, Vec<u8>)>,
    bytes: usize,
}

impl Default for Removals {
    fn default() -> Self {
        Self { began: f64::NEG_INFINITY, deltas: VecDeque::new(), bytes: 0 }
    }
}

impl Removals {
    /// Starts a new epoch: earlier changes are dropped.
    pub fn begin(&mut self, now: f64) {
        *self = Self { began: now, ..Self::default() };
    }

    /// Keeps a received Delta frame; the oldest are dropped beyond `MAX_BYTES`.
    pub fn note(&mut self, delta: &[u8], now: f64) {
        self.deltas.push_back((now, delta.to_vec()));
        self.bytes += delta.len();
        while self.bytes > MAX_BYTES {
            self.bytes -= self.deltas.pop_front().map_or(self.bytes, |(_, oldest)| oldest.len());
        }
    }

    /// Whether any of these keys was removed from the device at `since` or later, as far as frames are kept.
    #[must_use]
    pub fn lost(&self, keys: &[u64], since: f64) -> bool {
        let asked: HashSet<u64> = keys.iter().copied().collect();
        let mut recent = self.deltas.iter().rev().filter(|(at, _)| *at >= since);
        !asked.is_empty() && recent.any(|(_, delta)| removes(delta, &asked))
    }
}

/// A malformed frame, as one held back and not yet checked may be, removes nothing.
fn removes(delta: &[u8], asked: &HashSet<u64>) -> bool {
    let Ok(frame) = Frame::decode(delta, &mut Seen::default()) else { return false };
    frame.kind == Kind::Delta
        && frame.operations.iter().any(|operation| match operation {
            Operation::Cleared => true,
            Operation::Removed { keys, tier: Tier::Device } => keys.iter().any(|key| asked.contains(key)),
            Operation::Removed { .. } | Operation::Stored { .. } => false,
        })
}
