//! Block keys, by the formula of `core/cachefleet_core/block_keys.py`.

use crate::mixing::{GOLDEN, fold, splitmix64};

/// A token id in memory: as a number, or packed.
pub trait Token {
    fn id(&self) -> u32;
}

impl Token for u32 {
    #[inline]
    fn id(&self) -> u32 {
        *self
    }
}

/// Packed: little-endian.
impl Token for [u8; 4] {
    #[inline]
    fn id(&self) -> u32 {
        u32::from_le_bytes(*self)
    }
}

const TOKENS_PER_LANE: usize = 4;
/// Lanes of a block of 16 tokens, the usual size; it has a loop of its own.
const USUAL_LANES: usize = 4;

/// The four words that HMAC gives for a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Secrets {
    pub root: u64,
    pub finish: u64,
    pub lane: u64,
    pub position: u64,
}

/// Computes the keys of token sequences in one namespace at one block size; a key covers its block and `lookahead`
/// tokens after it.
#[derive(Debug)]
pub struct Keyer {
    secrets: Secrets,
    lane_keys: Vec<[u64; 2]>,
    block_size: usize,
    lookahead: usize,
}

impl Keyer {
    /// `block_size` is at least 1.
    #[must_use]
    pub fn new(secrets: Secrets, block_size: usize, lookahead: usize) -> Self {
        let key = |m: u64| splitmix64(secrets.lane.wrapping_add(m.wrapping_mul(GOLDEN)));
        let lanes = (block_size + lookahead).div_ceil(TOKENS_PER_LANE) as u64;
        let lane_keys = (0..lanes).map(|j| [key(2 * j), key(2 * j + 1)]).collect();
        Self { secrets, lane_keys, block_size, lookahead }
    }

    /// How many of `tokens` tokens the keys of their blocks cover.
    #[must_use]
    pub fn covered(&self, tokens: usize) -> usize {
        let blocks = tokens.saturating_sub(self.lookahead) / self.block_size;
        if blocks == 0 { 0 } else { blocks * self.block_size + self.lookahead }
    }

    /// The keys of the full blocks of `tokens` whose lookahead is there, too; they start `position` blocks into their
    /// prompt, after the block whose key is `parent`; `None` where they start it.
    #[must_use]
    pub fn keys<T: Token>(&self, tokens: &[T], parent: Option<u64>, position: u64) -> Vec<u64> {
        let mut chain = Chain::new(self.secrets, parent, position);
        if self.lookahead > 0 {
            let windows = tokens.windows(self.block_size + self.lookahead).step_by(self.block_size);
            return windows.map(|window| chain.extend(self.hash(window))).collect();
        }
        let blocks = tokens.chunks_exact(self.block_size);
        if let (true, Some(lane_keys)) = (self.usual(), self.lane_keys.first_chunk::<USUAL_LANES>()) {
            blocks.map(|block| chain.extend(hash_whole_lanes(block, lane_keys))).collect()
        } else {
            blocks.map(|block| chain.extend(self.hash(block))).collect()
        }
    }

    fn usual(&self) -> bool {
        self.block_size == TOKENS_PER_LANE * USUAL_LANES
    }

    fn hash<T: Token>(&self, block: &[T]) -> u64 {
        let whole = hash_whole_lanes(block, &self.lane_keys);
        let rest = block.chunks_exact(TOKENS_PER_LANE).remainder();
        if rest.is_empty() {
            return whole;
        }
        let mut padded = [0; TOKENS_PER_LANE];
        for (to, from) in padded.iter_mut().zip(rest) {
            *to = from.id();
        }
        let last = &self.lane_keys[self.lane_keys.len() - 1..];
        whole.wrapping_add(hash_whole_lanes(&padded, last))
    }
}

/// The key of the last block so far, and what the next one's position mixes in.
struct Chain {
    key: u64,
    finish: u64,
    position: u64,
}

impl Chain {
    fn new(secrets: Secrets, parent: Option<u64>, position: u64) -> Self {
        Self {
            key: parent.unwrap_or(secrets.root),
            finish: secrets.finish,
            position: secrets.position.wrapping_add(position.wrapping_mul(GOLDEN)),
        }
    }

    #[inline]
    fn extend(&mut self, hash: u64) -> u64 {
        self.position = self.position.wrapping_add(GOLDEN);
        let key = self.key.wrapping_add(fold(hash ^ self.finish, self.position));
        self.key = key.max(1); // 0 means "no parent" on the wire
        self.key
    }
}

#[inline]
fn hash_whole_lanes<T: Token>(tokens: &[T], lane_keys: &[[u64; 2]]) -> u64 {
    let pair = |low: &T, high: &T| u64::from(low.id()) | u64::from(high.id()) << 32;
    tokens.chunks_exact(TOKENS_PER_LANE).zip(lane_keys).fold(0, |sum, (lane, keys)| {
        let (x, y) = (pair(&lane[0], &lane[1]), pair(&lane[2], &lane[3]));
        sum.wrapping_add(fold(x ^ keys[0], y ^ keys[1]))
    })
}
