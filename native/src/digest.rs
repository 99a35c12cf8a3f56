//! The digest of a set of held blocks: a wrapping sum, so order and history do not matter.

use crate::mixing::splitmix64;

/// Where a block's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    Device = 0,
    Host = 1,
}

impl Tier {
    pub const ALL: [Self; 2] = [Self::Device, Self::Host];

    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Device),
            1 => Some(Self::Host),
            _ => None,
        }
    }

    fn salt(self) -> u64 {
        match self {
            Self::Device => 0,
            Self::Host => 0xA5A5_5A5A_C3C3_3C3C,
        }
    }
}

/// The sum that `keys`, new in `tier`, add to a set's digest.
#[must_use]
pub fn digest(keys: &[u64], tier: Tier) -> u64 {
    let salt = tier.salt();
    keys.iter().fold(0, |sum, key| sum.wrapping_add(splitmix64(key ^ salt)))
}
