//! Where prompts leave their nearest earlier relative. Prompts are kept as shapes: keyed digests of their parts, without text.

mod anchors;
pub mod memory;
mod parts;
pub mod relation;
pub mod shape;
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

/// A digest of two.
#[inline]
#[must_use]
pub fn joined(first: u64, second: u64) -> u64 {
    fold(first ^ LANES[0], second.rotate_left(29) ^ LANES[1]).wrapping_add(first)
}
