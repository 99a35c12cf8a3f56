//! Checks capacity for many operations at once, and slices operations so that readers do not wait long.

use super::{Full, Index, Operation};
use std::borrow::Cow;

impl Index {
    /// Makes sure that operations of one worker fit, in any order; where `replaces`, they replace all that it holds.
    /// Their removals are not counted: a bound may be reported a little early, never late.
    ///
    /// # Errors
    /// They do not fit; nothing has changed.
    pub fn room_for(&mut self, worker: &str, operations: &[&Operation], replaces: bool) -> Result<(), Full> {
        let slot = if replaces { None } else { self.slot(worker) };
        let known = self.workers.len();
        let stores = operations.iter().any(|operation| matches!(operation, Operation::Stored { .. }));
        if stores && self.slot(worker).is_none() && known >= self.limits.workers {
            return Err(Full::Workers { known, limit: self.limits.workers });
        }
        let most: usize = operations.iter().map(|operation| operation.keys().len()).sum();
        if self.held + most as u64 <= self.limits.held {
            return Ok(());
        }
        let lacking = |operation: &&Operation| match operation {
            Operation::Stored { keys, tier, .. } => self.tiers[*tier as usize].lacking(&self.sets, slot, keys),
            Operation::Removed { .. } | Operation::Cleared => 0,
        };
        let wanted: u64 = operations.iter().map(lacking).sum();
        let own_slot = if replaces { self.slot(worker) } else { None };
        let own = own_slot.map_or(0, |slot| self.workers.holdings(slot).blocks);
        let fits = |index: &Self, own: u64| index.held + wanted <= index.limits.held + own;
        if !self.sweep_until(|index| fits(index, own)) {
            return Err(self.full());
        }
        if !fits(self, 0) {
            self.forget(worker);
            self.sweep_until(|index| fits(index, 0));
        }
        Ok(())
    }
}

/// Splits an operation into several of at most `most` keys that together have the same effect.
#[must_use]
pub fn slices<'a>(operation: &'a Operation<'_>, most: usize) -> Vec<Operation<'a>> {
    match operation {
        Operation::Cleared => vec![Operation::Cleared],
        Operation::Removed { keys, tier } => {
            keys.chunks(most).map(|keys| Operation::Removed { keys: Cow::Borrowed(keys), tier: *tier }).collect()
        }
        Operation::Stored { parent, keys, tier } => {
            let before = |number: usize| if number == 0 { *parent } else { keys[number * most - 1] };
            let slice =
                |(number, keys)| Operation::Stored { parent: before(number), keys: Cow::Borrowed(keys), tier: *tier };
            keys.chunks(most).enumerate().map(slice).collect()
        }
    }
}
