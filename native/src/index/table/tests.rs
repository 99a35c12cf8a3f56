use super::super::arena::{Arena, BlockId, PAGE};
use super::{BUCKETS, Entry, Leaf, TAG_END, Table};
use crate::mixing::splitmix64;
use std::collections::HashMap;

/// A table with an arena for its keys, and a map that says what should be in.
struct Play {
    table: Table,
    arena: Arena,
    ids: HashMap<u64, BlockId>,
    free: Vec<BlockId>,
}

impl Play {
    fn new() -> Self {
        Self { table: Table::new([11, 12]), arena: Arena::new(), ids: HashMap::new(), free: Vec::new() }
    }

    /// Keys of a sequence that belong to segment 0, which grows with few of them as the table does with many.
    fn keys(&self, seed: u64) -> impl Iterator<Item = u64> + use<> {
        let table = Table::new(self.table.secrets);
        (0..).map(move |number| splitmix64(seed << 40 | number)).filter(move |key| table.spot(*key).segment() == 0)
    }

    fn insert(&mut self, key: u64) {
        if self.free.is_empty() {
            let page = self.arena.take(0);
            self.free.extend((0..PAGE).map(|offset| BlockId::new(page, offset)));
        }
        let id = self.free.pop().expect("some were added");
        self.arena.set_key(id, key);
        assert!(self.table.insert(self.table.soon(key), key, id, &self.arena));
        self.ids.insert(key, id);
    }

    fn insert_all(&mut self, keys: &[u64]) {
        for key in keys {
            self.insert(*key);
        }
    }

    fn remove(&mut self, key: u64) {
        let id = self.ids.remove(&key).expect("it is in");
        self.table.remove(self.table.soon(key), id);
        self.arena.set_key(id, 0);
        self.free.push(id);
    }

    fn compare(&self) {
        assert_eq!(self.table.len(), self.ids.len());
        for (key, id) in &self.ids {
            assert_eq!(self.table.find(*key, &self.arena), Some(*id));
        }
        for segment in &self.table.segments {
            for leaf in &segment.leaves {
                self.table.leaves[*leaf].assert_sound();
            }
            assert!(segment.leaves.is_empty() || segment.leaves.len() == (segment.smallest as usize) << segment.bits);
        }
    }

    fn bits(&self) -> u32 {
        self.table.segments[0].bits
    }
}

#[test]
fn what_grows_and_shrinks_holds_what_was_put_in_and_no_more() {
    let mut play = Play::new();
    let keys: Vec<u64> = play.keys(1).take(40_000).collect();
    for part in keys.chunks(4_000) {
        play.insert_all(part);
        play.compare();
    }
    assert!(play.bits() >= 3, "it has split again and again");
    let leaves = play.table.leaves.len();
    for (number, part) in keys.chunks(4_000).enumerate() {
        for key in part {
            play.remove(*key);
        }
        play.compare();
        assert!(part.iter().all(|key| play.table.find(*key, &play.arena).is_none()), "part {number}");
    }
    assert_eq!(play.bits(), 0, "leaves have joined again");
    play.insert_all(&keys);
    play.compare();
    assert_eq!(play.table.leaves.len(), leaves, "what joined is used again");
}

#[test]
fn coming_and_going_for_long_neither_grows_it_nor_loses_a_key() {
    let mut play = Play::new();
    let mut keys: Vec<u64> = play.keys(2).take(9_000).collect();
    play.insert_all(&keys);
    let fresh: Vec<u64> = play.keys(3).take(60_000).collect();
    for (number, key) in fresh.into_iter().enumerate() {
        let place = usize::try_from(splitmix64(number as u64)).expect("64 bits") % keys.len();
        play.remove(std::mem::replace(&mut keys[place], key));
        play.insert(key);
    }
    play.compare();
    assert!(play.bits() <= 3);
}

#[test]
fn a_key_is_in_once_and_its_block_may_move() {
    let mut play = Play::new();
    let keys: Vec<u64> = play.keys(4).take(6_000).collect();
    play.insert_all(&keys);
    for key in &keys {
        assert!(!play.table.insert(play.table.soon(*key), *key, BlockId(0), &play.arena));
    }
    let page = play.arena.take(0);
    for (offset, key) in (0..PAGE).zip(&keys) {
        let to = BlockId::new(page, offset);
        let from = play.ids.insert(*key, to).expect("it is in");
        play.arena.set_key(to, *key);
        play.table.moved(*key, from, to);
    }
    play.compare();
}

#[test]
fn what_was_looked_up_ahead_is_right_whatever_split_since() {
    let mut play = Play::new();
    let keys: Vec<u64> = play.keys(5).take(20_000).collect();
    for batch in keys.chunks(1_000) {
        let ahead: Vec<_> = batch.iter().map(|key| play.table.soon(*key)).collect();
        let page = |number: usize| u32::try_from(number).expect("few");
        let first = (0..=batch.len() / PAGE as usize).map(|_| play.arena.take(0)).min().expect("some");
        for (number, (key, ahead)) in batch.iter().zip(ahead).enumerate() {
            let id = BlockId::new(first + page(number / PAGE as usize), page(number % PAGE as usize));
            play.arena.set_key(id, *key);
            assert!(play.table.insert(ahead, *key, id, &play.arena));
            play.ids.insert(*key, id);
        }
    }
    play.compare();
}

#[test]
fn a_split_keeps_what_lies_beyond_the_leafs_end() {
    for bit in [0, 1 << 15] {
        let mut leaf = Leaf::EMPTY;
        let entries: Vec<Entry> =
            (0..30).map(|number| Entry { home: BUCKETS - 1, tag: (((number + 1) << TAG_END) - 1) | bit }).collect();
        for (entry, id) in entries.iter().zip(0..) {
            assert!(leaf.put(*entry, BlockId(id)));
        }
        let other = leaf.split(1 << 15);
        let half = if bit == 0 { leaf } else { other };
        for (entry, id) in entries.iter().zip(0..) {
            assert_eq!(half.find(*entry, |found| found == BlockId(id)), Some(BlockId(id)));
        }
        half.assert_sound();
    }
}

impl Leaf {
    /// Each bucket counts exactly the entries that overflowed past it.
    fn assert_sound(&self) {
        assert_eq!(self.passed(), self.passed_by_entries());
    }
}
