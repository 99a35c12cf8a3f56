//! Where prompts leave their nearest earlier relative. Prompts are kept as shapes: keyed digests of their parts, without text.

mod anchors;
pub mod memory;
mod order;
mod parts;
mod places;
pub mod relation;
pub mod shape;
pub mod volatile;
pub mod words;

pub use memory::PromptMemory;
pub use relation::Relation;
pub use shape::Shape;

use crate::mixing::{GOLDEN, fold};

/// Multipliers of two lanes.
const LANES: [u64; 2] = [0xA076_1D64_78BD_642F, 0xE703_7ED1_A0B4_28DB];

/// A digest of bytes under a secret; it never leaves the process.
#[must_use]
pub fn keyed_digest(bytes: &[u8], secret: u64) -> u64 {
    let (chunks, rest) = bytes.as_chunks::<16>();
    let mut state = secret ^ fold(bytes.len() as u64 ^ LANES[0], secret ^ GOLDEN);
    for chunk in chunks {
        state = mixed(state, chunk, secret);
    }
    if rest.is_empty() {
        return fold(state ^ LANES[1], secret ^ LANES[0]);
    }
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    fold(mixed(state, &last, secret) ^ LANES[1], secret ^ LANES[0])
}

#[inline]
fn mixed(state: u64, chunk: &[u8; 16], secret: u64) -> u64 {
    let (low, high) = chunk.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().unwrap_or_default());
    fold(word(low) ^ secret ^ LANES[0], word(high) ^ state ^ LANES[1])
}

/// The same purpose for a word: one of up to 16 bytes is read at once.
#[must_use]
pub fn word_digest(word: &[u8], secret: u64) -> u64 {
    match (word.first_chunk::<8>(), word.last_chunk::<8>()) {
        _ if word.len() <= 8 => short_digest(short(word), word.len(), secret),
        (Some(first), Some(last)) if word.len() <= 16 => {
            digest_of(u64::from_le_bytes(*first), u64::from_le_bytes(*last), word.len(), secret)
        }
        _ => keyed_digest(word, secret),
    }
}

/// Up to 8 bytes as a number.
fn short(word: &[u8]) -> u64 {
    word.iter().rev().fold(0, |bytes, byte| bytes << 8 | u64::from(*byte))
}

/// The digest of a word of at most 8 bytes, which are a number.
#[inline]
fn short_digest(word: u64, length: usize, secret: u64) -> u64 {
    digest_of(word, 0, length, secret)
}

#[inline]
fn digest_of(first: u64, last: u64, length: usize, secret: u64) -> u64 {
    let state = fold(first ^ secret ^ LANES[0], last ^ LANES[1] ^ (length as u64).wrapping_mul(GOLDEN));
    fold(state ^ LANES[1], secret ^ LANES[0])
}

/// Builds the hasher of tables whose keys are digests, which are their own hashes.
pub type Digests = std::hash::BuildHasherDefault<OwnHash>;

/// A hash that is the key itself.
#[derive(Default)]
pub struct OwnHash(u64);

impl std::hash::Hasher for OwnHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = keyed_digest(bytes, self.0);
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key.wrapping_mul(GOLDEN);
    }

    fn write_u32(&mut self, key: u32) {
        self.write_u64(u64::from(key));
    }
}

/// A digest of two.
#[inline]
#[must_use]
pub fn joined(first: u64, second: u64) -> u64 {
    fold(first ^ LANES[0], second.rotate_left(29) ^ LANES[1]).wrapping_add(first)
}
