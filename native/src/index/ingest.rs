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
        let keys: usize = operations.iter().map(|operation| operation.keys().len()).sum();
        let all = Wanted { keys: keys as u64, chains: operations.len() };
        if self.fits(all, 0) {
            return Ok(());
        }
        let lacking = |operation: &&Operation| match operation {
            Operation::Stored { keys, tier, .. } => self.tiers[*tier as usize].lacking(&self.sets, slot, keys),
            Operation::Removed { .. } | Operation::Cleared => 0,
        };
        let wanted = Wanted { keys: operations.iter().map(lacking).sum(), ..all };
        if wanted.keys == 0 {
            return Ok(());
        }
        let own_slot = if replaces { self.slot(worker) } else { None };
        let own = own_slot.map_or(0, |slot| self.workers.holdings(slot).blocks);
        if !self.sweep_until(|index| index.fits(wanted, own)) {
            return Err(self.full(wanted, own));
        }
        if !self.fits(wanted, 0) {
            self.forget(worker);
            self.sweep_until(|index| index.fits(wanted, 0));
        }
        Ok(())
    }

    /// Whether so much more fits where `own` holdings go. What these free is not known before: they may be shared.
    fn fits(&self, wanted: Wanted, own: u64) -> bool {
        self.held + wanted.keys <= self.limits.held + own && self.used() + wanted.bytes() <= self.limits.bytes
    }

    fn full(&self, wanted: Wanted, own: u64) -> Full {
        if self.held + wanted.keys > self.limits.held + own {
            return Full::Blocks { held: self.held, limit: self.limits.held };
        }
        Full::Memory { bytes: self.used(), limit: self.limits.bytes }
    }
}

/// What operations may need at most.
#[derive(Clone, Copy)]
struct Wanted {
    keys: u64,
    chains: usize,
}

impl Wanted {
    /// Of a key in a long run: itself, pages to come, and a slot of the table that is just more than half full.
    const KEY_BYTES: usize = 40;
    /// Of a run of its own: head, run, first pages, list of holders.
    const CHAIN_BYTES: usize = 512;

    fn bytes(self) -> usize {
        let keys = usize::try_from(self.keys).unwrap_or(usize::MAX);
        keys.saturating_mul(Self::KEY_BYTES) + self.chains * Self::CHAIN_BYTES
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

#[cfg(test)]
mod tests {
    use super::{Cow, Full, Index, Operation};
    use crate::digest::Tier;
    use crate::index::Limits;

    fn stored(key: u64) -> Operation<'static> {
        Operation::Stored { parent: 0, keys: Cow::Owned(vec![key]), tier: Tier::Device }
    }

    #[test]
    fn an_index_without_memory_left_forgets_nobody_and_takes_what_needs_none() {
        let mut index = Index::new(Limits { workers: 2, held: 1 << 20, bytes: 1 << 19 });
        let full = (1..).map(|key| index.apply("steady", &stored(key))).find_map(Result::err);
        assert!(matches!(full, Some(Full::Memory { .. })));
        index.limits.bytes = index.used() - 1;
        let before = index.digest("steady");

        index.apply("steady", &stored(1)).expect("it is held already");
        assert_eq!(index.digest("steady"), before);

        index
            .apply("steady", &Operation::Removed { keys: Cow::Owned(vec![1 << 40]), tier: Tier::Device })
            .expect("removals need nothing");
        assert_eq!(index.digest("steady"), before);
    }
}
