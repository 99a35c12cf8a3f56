//! Sets of workers that hold a block, each stored once for all its blocks.
//!
//! A set of one worker, by far the most frequent, is encoded as the worker's slot. Larger ones are interned: the
//! sorted words of a bit mask that are not zero. Each set counts its blocks: a set without blocks is freed, and the
//! counts of a worker's sets tell how much of what it holds others hold too.

use std::collections::HashMap;

/// A set of worker slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetId(u32);

/// The empty set.
pub const NOBODY: SetId = SetId(u32::MAX);
const SOLO: u32 = 1 << 31;

impl Default for SetId {
    fn default() -> Self {
        NOBODY
    }
}

/// A word of a set's bit mask: slots `64 * number ..`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    pub number: u32,
    pub bits: u64,
}

#[derive(Clone, Debug)]
struct Interned {
    words: Box<[Word]>,
    blocks: u64,
}

#[derive(Debug, Default)]
pub struct Sets {
    interned: Vec<Interned>,
    free: Vec<u32>,
    numbers: HashMap<Box<[Word]>, u32>,
    /// Blocks that one worker alone holds, by its slot.
    solo: Vec<u64>,
    words: usize,
}

/// The kind of a set, from its id alone.
enum Kind {
    Nobody,
    Solo(u32),
    Interned(u32),
}

impl SetId {
    #[must_use]
    pub fn solo(slot: u32) -> Self {
        Self(SOLO | slot)
    }

    #[inline]
    fn kind(self) -> Kind {
        if self == NOBODY {
            Kind::Nobody
        } else if self.0 & SOLO == 0 {
            Kind::Interned(self.0)
        } else {
            Kind::Solo(self.0 & !SOLO)
        }
    }
}

#[inline]
fn bit(slot: u32) -> Word {
    Word { number: slot / 64, bits: 1 << (slot % 64) }
}

impl Sets {
    /// The set's words, in order; none is zero.
    #[inline]
    pub fn words(&self, set: SetId) -> impl Iterator<Item = Word> + '_ {
        let (one, many) = match set.kind() {
            Kind::Nobody => (None, &[][..]),
            Kind::Solo(slot) => (Some(bit(slot)), &[][..]),
            Kind::Interned(number) => (None, &self.interned[number as usize].words[..]),
        };
        one.into_iter().chain(many.iter().copied())
    }

    #[inline]
    #[must_use]
    pub fn has(&self, set: SetId, slot: u32) -> bool {
        match set.kind() {
            Kind::Nobody => false,
            Kind::Solo(alone) => alone == slot,
            Kind::Interned(number) => has(&self.interned[number as usize].words, slot),
        }
    }

    /// The set with one more worker.
    pub fn with(&mut self, set: SetId, slot: u32) -> SetId {
        if set == NOBODY {
            return SetId::solo(slot);
        }
        if self.has(set, slot) {
            return set;
        }
        let one = bit(slot);
        let mut words: Vec<Word> = self.words(set).collect();
        match words.binary_search_by_key(&one.number, |word| word.number) {
            Ok(at) => words[at].bits |= one.bits,
            Err(at) => words.insert(at, one),
        }
        self.intern(words)
    }

    /// The set without one worker.
    pub fn without(&mut self, set: SetId, slot: u32) -> SetId {
        if set == SetId::solo(slot) {
            return NOBODY;
        }
        if !self.has(set, slot) {
            return set;
        }
        let one = bit(slot);
        self.keep(set, |word| if word.number == one.number { word.bits & !one.bits } else { word.bits })
    }

    /// The set without the workers of a mask.
    pub fn minus(&mut self, set: SetId, mask: &[u64]) -> SetId {
        let masked = |word: Word| mask.get(word.number as usize).copied().unwrap_or(0);
        if self.words(set).all(|word| word.bits & masked(word) == 0) {
            return set;
        }
        self.keep(set, |word| word.bits & !masked(word))
    }

    /// The set of these workers; `words` are sorted, without zeros.
    fn intern(&mut self, words: Vec<Word>) -> SetId {
        match words[..] {
            [] => return NOBODY,
            [word] if word.bits.is_power_of_two() => {
                return SetId::solo(word.number * 64 + word.bits.trailing_zeros());
            }
            _ => {}
        }
        let words = words.into_boxed_slice();
        if let Some(number) = self.numbers.get(&words) {
            return SetId(*number);
        }
        self.words += words.len();
        let fresh = Interned { words: words.clone(), blocks: 0 };
        let number = if let Some(number) = self.free.pop() {
            self.interned[number as usize] = fresh;
            number
        } else {
            self.interned.push(fresh);
            u32::try_from(self.interned.len() - 1).expect("at most one set for each block")
        };
        self.numbers.insert(words, number);
        SetId(number)
    }

    /// Moves `blocks` blocks from the set `old` to the set `new`; frees `old` where it has none left.
    pub fn shift(&mut self, old: SetId, new: SetId, blocks: u32) {
        if old == new {
            return;
        }
        if let Some(count) = self.blocks(new) {
            *count += u64::from(blocks);
        }
        if let Some(count) = self.blocks(old) {
            *count -= u64::from(blocks);
            if *count == 0 {
                self.release(old);
            }
        }
    }

    /// How many blocks one worker alone holds.
    #[must_use]
    pub fn alone(&self, slot: u32) -> u64 {
        self.solo.get(slot as usize).copied().unwrap_or(0)
    }

    /// By slot, the sum over a worker's blocks of 1 / number of their holders; `live` masks the workers that count.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "an estimate, of counts far below 2**52")]
    pub fn shares(&self, live: &[u64]) -> Vec<f64> {
        let mut shares: Vec<f64> = self.solo.iter().map(|blocks| *blocks as f64).collect();
        shares.resize(64 * live.len(), 0.0);
        for set in self.interned.iter().filter(|set| set.blocks > 0) {
            let share = set.blocks as f64 / f64::from(living(&set.words, live).max(1));
            for slot in set.words.iter().flat_map(|word| slots(*word)) {
                shares[slot] += share;
            }
        }
        shares
    }

    /// How many workers of a mask are in a set.
    #[must_use]
    pub fn count_in(&self, set: SetId, mask: &[u64]) -> u32 {
        self.words(set).map(|word| (word.bits & mask.get(word.number as usize).unwrap_or(&0)).count_ones()).sum()
    }

    #[must_use]
    pub fn bytes(&self) -> usize {
        // Each set's words are kept twice: in the slab, and as the key of the map.
        2 * self.words * size_of::<Word>()
            + self.interned.capacity() * size_of::<Interned>()
            + self.numbers.capacity() * (size_of::<(Box<[Word]>, u32)>() + 1)
            + self.solo.capacity() * size_of::<u64>()
    }

    fn blocks(&mut self, set: SetId) -> Option<&mut u64> {
        match set.kind() {
            Kind::Nobody => None,
            Kind::Interned(number) => Some(&mut self.interned[number as usize].blocks),
            Kind::Solo(slot) => {
                let slot = slot as usize;
                if self.solo.len() <= slot {
                    self.solo.resize(slot + 1, 0);
                }
                Some(&mut self.solo[slot])
            }
        }
    }

    fn release(&mut self, set: SetId) {
        if let Kind::Interned(number) = set.kind() {
            let words = std::mem::take(&mut self.interned[number as usize].words);
            self.words -= words.len();
            self.numbers.remove(&words);
            self.free.push(number);
        }
    }

    fn keep(&mut self, set: SetId, bits: impl Fn(Word) -> u64) -> SetId {
        let words =
            self.words(set).map(|word| Word { bits: bits(word), ..word }).filter(|word| word.bits != 0).collect();
        self.intern(words)
    }
}

fn has(words: &[Word], slot: u32) -> bool {
    let one = bit(slot);
    words.binary_search_by_key(&one.number, |word| word.number).is_ok_and(|at| words[at].bits & one.bits != 0)
}

fn slots(word: Word) -> impl Iterator<Item = usize> {
    (0..64).filter(move |bit| word.bits >> bit & 1 == 1).map(move |bit| 64 * word.number as usize + bit)
}

fn living(words: &[Word], live: &[u64]) -> u32 {
    words.iter().map(|word| (word.bits & live.get(word.number as usize).unwrap_or(&0)).count_ones()).sum()
}
