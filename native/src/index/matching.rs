//! Prefix matching: one walk along a prompt's keys narrows the set of workers that hold all of them so far.

use super::sets::{NOBODY, SetId, Sets};
use super::spans::pieces;
use super::tier::Tier;
use crate::reader::Key;

/// The workers to match, as a mask of their slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked(Vec<u64>);

impl Asked {
    #[must_use]
    pub fn new(slots: impl Iterator<Item = u32>) -> Self {
        let mut mask: Vec<u64> = Vec::new();
        for slot in slots {
            let word = slot as usize / 64;
            if mask.len() <= word {
                mask.resize(word + 1, 0);
            }
            mask[word] |= 1 << (slot % 64);
        }
        Self(mask)
    }
}

/// Workers to match, by slot, and after a walk how many blocks each holds. Kept between walks, so that none allocates.
#[derive(Debug, Default)]
pub struct Walk {
    alive: Vec<u64>,
    /// By slot; valid for slots that were asked about.
    depths: Vec<u32>,
}

impl Walk {
    /// Starts a walk with these workers, at depth 0.
    pub fn begin(&mut self, asked: &Asked) {
        self.alive.clone_from(&asked.0);
        if self.depths.len() < 64 * asked.0.len() {
            self.depths.resize(64 * asked.0.len(), 0);
        }
        for (depths, word) in self.depths.as_chunks_mut::<64>().0.iter_mut().zip(&asked.0) {
            if *word != 0 {
                *depths = [0; 64];
            }
        }
    }

    /// Matched blocks of a worker that was asked about; 0 for an unknown slot.
    #[inline]
    #[must_use]
    pub fn depth(&self, slot: u32) -> u32 {
        self.depths.get(slot as usize).copied().unwrap_or(0)
    }

    /// Sets the depth of a worker that was asked about.
    pub fn set_depth(&mut self, slot: u32, depth: u32) {
        if let Some(known) = self.depths.get_mut(slot as usize) {
            *known = depth;
        }
    }

    /// Finds how many of `keys` each worker holds before the first it lacks.
    #[expect(clippy::cast_possible_truncation, reason = "callers bound a prompt's blocks")]
    pub fn run<K: Key>(&mut self, tier: &Tier, sets: &Sets, keys: &[K]) {
        let mut depth = 0;
        'prompt: while depth < keys.len() {
            let Some(place) = tier.find(keys[depth].key()) else {
                break;
            };
            let run = &tier.runs[place.run];
            let end = depth + (run.len() - place.offset) as usize;
            if run.holes() > 0 {
                run.fetch(&tier.arena, place.offset);
            } else if let Some(next) = keys.get(end) {
                // Most prompts go on at a run's end: what finds the key there comes while this one is compared.
                tier.fetch(next.key());
            }
            for piece in pieces(run.spans(), place.offset, run.len()) {
                // One key is enough where nobody holds the block.
                let most = if piece.set == NOBODY { 1 } else { piece.len() as usize };
                let asked = &keys[depth..keys.len().min(depth + most)];
                let same = run.common(&tier.arena, piece.start, asked) as usize;
                if same == 0 {
                    continue 'prompt;
                }
                if !self.narrow(sets, piece.set, depth as u32) {
                    break 'prompt;
                }
                depth += same;
                if same < most {
                    continue 'prompt;
                }
            }
        }
        self.settle(depth as u32);
    }

    /// Workers that are not in `set` end at `depth`; false where none is left.
    #[inline]
    fn narrow(&mut self, sets: &Sets, set: SetId, depth: u32) -> bool {
        let mut words = sets.words(set).peekable();
        let mut left = 0;
        for (number, alive) in (0..).zip(self.alive.iter_mut()) {
            let bits = words.next_if(|word| word.number == number).map_or(0, |word| word.bits);
            let gone = *alive & !bits;
            if gone != 0 {
                mark(&mut self.depths, number, gone, depth);
                *alive &= bits;
            }
            left |= *alive;
        }
        left != 0
    }

    fn settle(&mut self, depth: u32) {
        for (number, alive) in (0..).zip(self.alive.iter_mut()) {
            mark(&mut self.depths, number, *alive, depth);
            *alive = 0;
        }
    }
}

#[inline]
fn mark(depths: &mut [u32], number: u32, mut bits: u64, depth: u32) {
    if depth == 0 {
        return; // they are there already
    }
    while bits != 0 {
        depths[(number * 64 + bits.trailing_zeros()) as usize] = depth;
        bits &= bits - 1;
    }
}
