//! Checks capacity for many operations at once, and slices operations so that readers do not wait long.

use super::{Full, Index, Operation};
use crate::digest::Tier;
use std::borrow::Cow;

impl Index {
    /// Makes sure that operations of one worker fit, in any order; where `replaces`, they replace all that it holds.
    /// Their removals are not counted: a bound may be reported a little early, never late. What is replaced is, as far
    /// as no other worker holds it too; it may be gone then.
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
        let all = Wanted { holdings: keys as u64, keys: keys as u64, chains: operations.len() };
        if self.fits(all, None) {
            return Ok(());
        }
        let former = if replaces { self.slot(worker) } else { None };
        let wanted = if replaces { self.anew(operations, former) } else { self.more(operations, slot) };
        if wanted.holdings == 0 {
            return Ok(());
        }
        if !self.sweep_until(|index| index.fits(wanted, former)) {
            return Err(self.full(wanted, former));
        }
        if !self.fits(wanted, None) {
            self.forget(worker);
            self.sweep_until(|index| index.fits(wanted, None));
        }
        Ok(())
    }

    /// What operations of a worker that keeps what it holds may need.
    fn more(&self, operations: &[&Operation], slot: Option<u32>) -> Wanted {
        let lacking = |(keys, tier): (&[u64], Tier)| self.tiers[tier as usize].lacking(&self.sets, slot, keys);
        let keys = operations.iter().map(|operation| lacking(stored(operation))).sum();
        Wanted { holdings: keys, keys, chains: operations.len() }
    }

    /// What operations that replace all of a worker's may need: keys that others hold stay where they are, and so does
    /// a chain of which each key is held.
    fn anew(&self, operations: &[&Operation], replaced: Option<u32>) -> Wanted {
        let (all, others) = (self.workers.live(), self.workers.live_but(replaced));
        let mut wanted = Wanted { holdings: 0, keys: 0, chains: 0 };
        for (keys, tier) in operations.iter().map(|operation| stored(operation)) {
            let tier = &self.tiers[tier as usize];
            wanted.holdings += keys.len() as u64;
            wanted.keys += tier.unheld(&self.sets, &others, keys);
            wanted.chains += usize::from(tier.unheld(&self.sets, all, keys) > 0);
        }
        wanted
    }

    /// Whether so much more fits where the worker of the slot `replaced` goes: with what it alone holds goes its memory.
    fn fits(&self, wanted: Wanted, replaced: Option<u32>) -> bool {
        let alone = replaced.map_or(0, |slot| self.sets.alone(slot));
        let bytes = wanted.bytes().saturating_sub(bytes(alone));
        self.fits_held(wanted, replaced) && (bytes == 0 || self.used().saturating_add(bytes) <= self.limits.bytes)
    }

    fn fits_held(&self, wanted: Wanted, replaced: Option<u32>) -> bool {
        let own = replaced.map_or(0, |slot| self.workers.holdings(slot).blocks);
        self.held + wanted.holdings <= self.limits.held + own
    }

    fn full(&self, wanted: Wanted, replaced: Option<u32>) -> Full {
        if self.fits_held(wanted, replaced) {
            return Full::Memory { bytes: self.used(), limit: self.limits.bytes };
        }
        Full::Blocks { held: self.held, limit: self.limits.held }
    }
}

/// What operations may need at most.
#[derive(Clone, Copy)]
struct Wanted {
    /// (key, tier) that the worker does not hold, or not once its present ones are gone.
    holdings: u64,
    /// Of these, what takes memory.
    keys: u64,
    chains: usize,
}

impl Wanted {
    /// Of a run of its own: head, run, first pages, list of holders.
    const CHAIN_BYTES: usize = 512;

    fn bytes(self) -> usize {
        bytes(self.keys).saturating_add(self.chains.saturating_mul(Self::CHAIN_BYTES))
    }
}

/// Memory of keys in long runs: themselves, pages to come, and slots of a table that is just more than half full.
fn bytes(keys: u64) -> usize {
    const KEY_BYTES: usize = 40;
    usize::try_from(keys).unwrap_or(usize::MAX).saturating_mul(KEY_BYTES)
}

/// The keys that an operation adds, and where.
fn stored<'a>(operation: &'a Operation) -> (&'a [u64], Tier) {
    match operation {
        Operation::Stored { keys, tier, .. } => (keys, *tier),
        Operation::Removed { .. } | Operation::Cleared => (&[], Tier::Device),
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
    use super::{Cow, Full, Index, Operation, Tier};
    use crate::index::Limits;
    use std::ops::Range;

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

    fn chain(keys: Range<u64>) -> Operation<'static> {
        Operation::Stored { parent: 0, keys: Cow::Owned(keys.collect()), tier: Tier::Device }
    }

    /// An index whose memory is used up but for one chain's, of workers that hold 20,000 keys each.
    fn at_the_bound(holdings: &[(&str, Range<u64>)]) -> Index {
        let mut index = Index::new(Limits { workers: 8, held: 1 << 20, bytes: Limits::MOST_BYTES });
        for (worker, keys) in holdings {
            index.apply(worker, &chain(keys.clone())).expect("there is room");
        }
        index.limits.bytes = index.used() + 512;
        index
    }

    fn replace(index: &mut Index, worker: &str, keys: Range<u64>) -> Result<(), Full> {
        let operation = chain(keys);
        index.room_for(worker, &[&operation], true)?;
        index.forget(worker);
        index.apply_all(worker, &[&operation])
    }

    #[test]
    fn what_replaces_as_much_fits_at_the_bound() {
        let mut index = at_the_bound(&[("steady", 1..20_001), ("replaced", 20_001..40_001)]);
        for (first, last) in [(20_001, 40_001), (30_001, 50_001), (60_001, 80_001)] {
            replace(&mut index, "replaced", first..last).expect("as much goes as comes");
            assert_eq!((index.held("steady"), index.held("replaced")), (20_000, 20_000));
            assert!(index.used() <= index.limits.bytes + (64 << 10), "{} of {}", index.used(), index.limits.bytes);
        }
        let refused = replace(&mut index, "replaced", 100_001..121_001);
        assert!(matches!(refused, Err(Full::Memory { .. })));
        assert_eq!(index.held("replaced"), 20_000);
    }

    #[test]
    fn what_is_held_already_fits_whoever_holds_it_and_however_far_beyond_the_bound() {
        let mut index = at_the_bound(&[("steady", 1..20_001), ("shares", 1..20_001), ("alone", 20_001..40_001)]);
        index.limits.bytes = 1 << 16;
        for (worker, keys) in [("shares", 1..20_001), ("alone", 20_001..40_001), ("new", 5_001..15_001)] {
            let held = keys.end - keys.start;
            replace(&mut index, worker, keys).expect("it takes no key more");
            assert_eq!(index.held(worker), held);
        }
    }

    #[test]
    fn what_others_hold_too_is_not_freed_by_its_replacement() {
        let mut index = at_the_bound(&[("steady", 1..20_001), ("shares", 1..20_001)]);
        let refused = replace(&mut index, "shares", 20_001..40_001);
        assert!(matches!(refused, Err(Full::Memory { .. })));
        assert_eq!(index.held("shares"), 20_000);
    }
}
