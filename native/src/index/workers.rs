//! The workers of an index: each has a slot, its number in holder sets.
//!
//! A forgotten worker's slot is retired, not free: sets still have its number. Slots retired before a sweep began are
//! free once the sweep has visited every run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Debug, Default)]
pub struct Holdings {
    pub blocks: u64,
    /// Of these, blocks below the device.
    pub below: u64,
    pub digest: u64,
}

/// The next `Workers::version` of any index in this process, so that slots of one index are never used with another.
static VERSIONS: AtomicU64 = AtomicU64::new(1);

#[derive(Debug, Default)]
pub struct Workers {
    slots: HashMap<Box<str>, u32>,
    holdings: Vec<Holdings>,
    live: Vec<u64>,
    retired: Vec<u64>,
    free: Vec<u32>,
    /// Changes whenever a name gets or loses its slot; 0 while none ever had one.
    version: u64,
}

impl Workers {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Slots that a name has or that wait to be swept.
    pub fn occupied(&self) -> usize {
        self.holdings.len() - self.free.len()
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn live(&self) -> &[u64] {
        &self.live
    }

    /// The mask of live workers without one.
    pub fn live_but(&self, slot: Option<u32>) -> Vec<u64> {
        let mut mask = self.live.clone();
        if let Some(slot) = slot {
            mask[slot as usize / 64] &= !(1 << (slot % 64));
        }
        mask
    }

    pub fn slot(&self, name: &str) -> Option<u32> {
        self.slots.get(name).copied()
    }

    pub fn holdings(&self, slot: u32) -> &Holdings {
        &self.holdings[slot as usize]
    }

    pub fn holdings_mut(&mut self, slot: u32) -> &mut Holdings {
        &mut self.holdings[slot as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.slots.iter().map(|(name, slot)| (&**name, *slot))
    }

    /// Gives a slot to a name that has none.
    pub fn begin(&mut self, name: &str) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| self.new_slot());
        self.slots.insert(name.into(), slot);
        self.live[slot as usize / 64] |= 1 << (slot % 64);
        self.version = VERSIONS.fetch_add(1, Ordering::Relaxed);
        slot
    }

    /// Retires a name's slot.
    pub fn retire(&mut self, name: &str) {
        let Some(slot) = self.slots.remove(name) else {
            return;
        };
        let mask = 1 << (slot % 64);
        self.live[slot as usize / 64] &= !mask;
        self.retired[slot as usize / 64] |= mask;
        self.version = VERSIONS.fetch_add(1, Ordering::Relaxed);
        *self.holdings_mut(slot) = Holdings::default();
    }

    pub fn retired(&self) -> &[u64] {
        &self.retired
    }

    pub fn any_retired(&self) -> bool {
        self.retired.iter().any(|word| *word != 0)
    }

    /// Frees the slots of `mask`, which no set has any more.
    pub fn free(&mut self, mask: &[u64]) {
        for (number, (bits, retired)) in (0..).zip(mask.iter().zip(&mut self.retired)) {
            let mut bits = *bits;
            *retired &= !bits;
            while bits != 0 {
                self.free.push(number * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }

    fn new_slot(&mut self) -> u32 {
        let slot = u32::try_from(self.holdings.len()).expect("bounded by max_workers");
        self.holdings.push(Holdings::default());
        if self.live.len() * 64 <= slot as usize {
            self.live.push(0);
            self.retired.push(0);
        }
        slot
    }
}
