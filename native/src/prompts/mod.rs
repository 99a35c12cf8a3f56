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

/// Bytes that are read in lanes, each of them by itself.
const WIDE: usize = 64;

/// A digest of bytes under a secret; it never leaves the process.
#[must_use]
pub fn keyed_digest(bytes: &[u8], secret: u64) -> u64 {
    let key = secret ^ LANES[0];
    let mut state = secret ^ fold(bytes.len() as u64 ^ LANES[0], secret ^ GOLDEN);
    let (wide, bytes) = bytes.as_chunks::<WIDE>();
    if !wide.is_empty() {
        state = in_lanes(wide, key, state);
    }
    let (chunks, rest) = bytes.as_chunks::<16>();
    for chunk in chunks {
        state = mixed(state, chunk, key);
    }
    if !rest.is_empty() {
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        state = mixed(state, &last, key);
    }
    fold(state ^ LANES[1], key)
}

/// A state that commits to all chunks and their order.
fn in_lanes(wide: &[[u8; WIDE]], key: u64, state: u64) -> u64 {
    let mut lanes = [state, state ^ LANES[1], state ^ GOLDEN, !state];
    for chunk in wide {
        let (parts, _) = chunk.as_chunks::<16>();
        lanes[0] = mixed(lanes[0], &parts[0], key);
        lanes[1] = mixed(lanes[1], &parts[1], key);
        lanes[2] = mixed(lanes[2], &parts[2], key);
        lanes[3] = mixed(lanes[3], &parts[3], key);
    }
    fold(lanes[0] ^ key, lanes[1]) ^ fold(lanes[2] ^ key, lanes[3].rotate_left(29))
}

#[inline]
fn mixed(state: u64, chunk: &[u8; 16], key: u64) -> u64 {
    let (low, high) = chunk.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().unwrap_or_default());
    fold(word(low) ^ key, word(high) ^ state)
}

/// The same purpose for a word: one of up to 16 bytes is read at once.
#[must_use]
pub fn word_digest(word: &[u8], secret: u64) -> u64 {
    match (word.first_chunk::<8>(), word.last_chunk::<8>()) {
        _ if word.len() <= 8 => short_digest(short(word), secret),
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

/// The digest of a word of at most 8 bytes, none of them 0, as a number.
#[inline]
fn short_digest(word: u64, secret: u64) -> u64 {
    fold(word ^ secret ^ LANES[0], secret.rotate_left(32) ^ LANES[1])
}

/// The digest of a word of at most 16 bytes: its first 8, its last 8, and how many it has.
#[inline]
fn digest_of(first: u64, last: u64, length: usize, secret: u64) -> u64 {
    let lengths = (length as u64).wrapping_mul(GOLDEN);
    fold(first ^ secret ^ LANES[0], last ^ secret.rotate_left(32) ^ LANES[1] ^ lengths)
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
