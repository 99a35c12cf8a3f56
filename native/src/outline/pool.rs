//! The blocks of one engine, by number: cached, in use, idle and evicted. `simulation/simulated_blocks.py` is the model:
//! a freed block stays findable until its turn to be evicted comes, least recently used first, a prompt's tail before its
//! head; with a budget at most so many idle blocks stay.

use crate::mixing::GOLDEN;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

const NONE: u32 = u32::MAX;

/// Numbers are dense: a product spreads them.
#[derive(Clone, Copy, Debug, Default)]
struct OwnHash(u64);

impl Hasher for OwnHash {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number).wrapping_mul(GOLDEN);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A place for a block: which one it holds, how many requests use it, its neighbours among the idle ones, and the next
/// copy of the same block.
#[derive(Clone, Copy, Debug)]
struct Slot {
    block: u32,
    users: u32,
    older: u32,
    newer: u32,
    copy: u32,
}

#[derive(Debug)]
pub struct Pool {
    total: usize,
    budget: usize,
    slots: Vec<Slot>,
    blank: Vec<u32>,
    /// The first copy of each cached block.
    cached: HashMap<u32, u32, BuildHasherDefault<OwnHash>>,
    idle: usize,
    oldest: u32,
    newest: u32,
}

impl Pool {
    /// So many blocks, at most `budget` of them idle ones that are kept.
    #[must_use]
    pub fn new(total: usize, budget: usize) -> Self {
        Self {
            total,
            budget,
            slots: Vec::new(),
            blank: Vec::new(),
            cached: HashMap::default(),
            idle: 0,
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Blocks that hold nothing.
    #[must_use]
    pub fn blank(&self) -> usize {
        self.total - self.slots.len() + self.blank.len()
    }

    #[must_use]
    pub fn idle(&self) -> usize {
        self.idle
    }

    /// Blocks that may be handed out.
    #[must_use]
    pub fn free(&self) -> usize {
        self.blank() + self.idle
    }

    /// How many of the first blocks are cached, at most `limit`.
    #[must_use]
    pub fn held(&self, blocks: &[u32], limit: usize) -> usize {
        blocks.iter().take(limit).take_while(|block| self.cached.contains_key(block)).count()
    }

    /// Slots of these, and how many of them are idle.
    #[must_use]
    pub fn lookup(&self, blocks: &[u32], limit: usize) -> (Vec<u32>, usize) {
        let found = blocks.iter().take(limit).map_while(|block| self.cached.get(block).copied());
        let found: Vec<u32> = found.collect();
        let idle = found.iter().filter(|slot| self.slots[**slot as usize].users == 0).count();
        (found, idle)
    }

    /// Uses cached blocks once more.
    pub fn touch(&mut self, slots: &[u32]) {
        for slot in slots {
            if self.slots[*slot as usize].users == 0 {
                self.unlink(*slot);
            }
            self.slots[*slot as usize].users += 1;
        }
    }

    /// Blocks for one user, no more than are free, evicting what was used longest ago.
    pub fn allocate(&mut self, count: usize, to: &mut Vec<u32>) {
        for _ in 0..count {
            let slot = if self.blank() == 0 { self.evict() } else { self.unused() };
            self.slots[slot as usize] = Slot { block: NONE, users: 1, older: NONE, newer: NONE, copy: NONE };
            to.push(slot);
        }
    }

    /// Caches blocks that have just become full.
    pub fn store(&mut self, slots: &[u32], blocks: &[u32]) {
        for (slot, block) in slots.iter().zip(blocks) {
            self.slots[*slot as usize].block = *block;
            let first = *self.cached.entry(*block).or_insert(*slot);
            if first != *slot {
                let last = self.last_copy(first, NONE);
                self.slots[last as usize].copy = *slot;
            }
        }
    }

    /// Gives back a request's blocks, in its order.
    pub fn release(&mut self, slots: &[u32]) {
        for slot in slots.iter().rev() {
            let released = &mut self.slots[*slot as usize];
            released.users -= 1;
            if released.users > 0 {
                continue;
            }
            if released.block == NONE { self.blank.push(*slot) } else { self.link(*slot) }
        }
        while self.idle > self.budget {
            let slot = self.evict();
            self.blank.push(slot);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "no more slots than are bounded")]
    fn unused(&mut self) -> u32 {
        self.blank.pop().unwrap_or_else(|| {
            self.slots.push(Slot { block: NONE, users: 0, older: NONE, newer: NONE, copy: NONE });
            self.slots.len() as u32 - 1
        })
    }

    /// The copy of a block before `end`, from one of its copies on.
    fn last_copy(&self, from: u32, end: u32) -> u32 {
        let mut slot = from;
        while self.slots[slot as usize].copy != end {
            slot = self.slots[slot as usize].copy;
        }
        slot
    }

    fn evict(&mut self) -> u32 {
        let slot = self.oldest;
        self.unlink(slot);
        let Slot { block, copy, .. } = self.slots[slot as usize];
        let first = self.cached[&block];
        if first != slot {
            let before = self.last_copy(first, slot);
            self.slots[before as usize].copy = copy;
        } else if copy == NONE {
            self.cached.remove(&block);
        } else {
            self.cached.insert(block, copy);
        }
        self.slots[slot as usize] = Slot { block: NONE, users: 0, older: NONE, newer: NONE, copy: NONE };
        slot
    }

    fn link(&mut self, slot: u32) {
        let before = std::mem::replace(&mut self.newest, slot);
        match self.slots.get_mut(before as usize) {
            Some(older) => older.newer = slot,
            None => self.oldest = slot,
        }
        let linked = &mut self.slots[slot as usize];
        (linked.older, linked.newer) = (before, NONE);
        self.idle += 1;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, newer, .. } = self.slots[slot as usize];
        match self.slots.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        self.idle -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::Pool;

    fn filled(pool: &mut Pool, blocks: &[u32]) -> Vec<u32> {
        let mut slots = Vec::new();
        pool.allocate(blocks.len(), &mut slots);
        pool.store(&slots, blocks);
        slots
    }

    #[test]
    fn a_prompts_tail_goes_before_its_head_and_no_more_than_the_budget_stays() {
        let mut pool = Pool::new(8, 2);
        let slots = filled(&mut pool, &[1, 2, 3]);
        assert_eq!((pool.free(), pool.idle(), pool.held(&[1, 2, 3], 3)), (5, 0, 3));
        pool.release(&slots);
        assert_eq!((pool.free(), pool.idle(), pool.held(&[1, 2, 3], 3)), (8, 2, 2));
    }

    #[test]
    fn a_block_is_found_as_long_as_a_copy_of_it_is_there() {
        let mut pool = Pool::new(3, 3);
        let copies = [filled(&mut pool, &[1]), filled(&mut pool, &[1]), filled(&mut pool, &[1])];
        pool.release(&copies[1]);
        pool.release(&copies[0]);
        assert_eq!(pool.lookup(&[1], 1), (copies[0].clone(), 1));
        let mut slots = Vec::new();
        pool.allocate(2, &mut slots);
        assert_eq!((slots, pool.held(&[1], 1)), (vec![copies[1][0], copies[0][0]], 1));
        pool.release(&copies[2]);
        pool.allocate(1, &mut Vec::new());
        assert_eq!((pool.held(&[1], 1), pool.free()), (0, 0));
    }
}
