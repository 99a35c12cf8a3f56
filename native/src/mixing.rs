//! The two mixing functions of keys, digests and hash tables. `core/cachefleet_core/block_keys.py` defines them.

/// 2**64 divided by the golden ratio.
pub const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Both halves of the 128-bit product of two numbers, xored into one.
#[inline]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "each half is meant")]
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// The output function of Steele, Lea and Flood's `SplitMix64` at `state`.
#[inline]
#[must_use]
pub fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
