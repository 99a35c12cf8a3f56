//! Operations on an index, and their validation.

use super::random;
use crate::digest::Tier;
use std::borrow::Cow;

/// One operation of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// A chain now held; `parent` is the key before the first, 0 for none.
    Stored { parent: u64, keys: Cow<'a, [u64]>, tier: Tier },
    /// Keys no longer held, in any order.
    Removed { keys: Cow<'a, [u64]>, tier: Tier },
    /// Nothing is held any more.
    Cleared,
}

/// Why an operation is refused; it names the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationError {
    NoKeys,
    ZeroKey,
    Twice,
}

impl Operation<'_> {
    #[must_use]
    pub fn keys(&self) -> &[u64] {
        match self {
            Self::Stored { keys, .. } | Self::Removed { keys, .. } => keys,
            Self::Cleared => &[],
        }
    }
}

impl OperationError {
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            Self::NoKeys => "must not be empty",
            Self::ZeroKey => "0 is not a block key",
            Self::Twice => "a key occurs twice in one chain",
        }
    }
}

impl std::fmt::Display for OperationError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "keys: {}", self.why())
    }
}

/// Chains up to this length get a larger hash table, which still fits the first-level cache.
const SHORT: usize = 1024;

/// Finds keys that occur twice in a chain; kept between chains, so that small ones allocate nothing.
#[derive(Debug)]
pub struct Seen {
    /// Odd multiplier of the hash; secret, so that nobody can choose keys that collide.
    secret: u64,
    /// Index of a key in its chain, plus one.
    places: Vec<u32>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { secret: random() | 1, places: Vec::new() }
    }
}

impl Seen {
    #[expect(clippy::cast_possible_truncation, reason = "a frame's keys are far fewer than 2**32; parts of a hash")]
    fn any_twice(&mut self, keys: &[u64]) -> bool {
        let room = if keys.len() <= SHORT { 4 } else { 2 };
        let size = (room * keys.len()).next_power_of_two();
        let shift = 64 - size.trailing_zeros();
        self.places.clear();
        self.places.resize(size, 0);
        keys.iter().enumerate().any(|(number, key)| {
            let mut at = (key.wrapping_mul(self.secret) >> shift) as usize;
            while let Some(other) = self.places[at].checked_sub(1) {
                if keys[other as usize] == *key {
                    return true;
                }
                at = (at + 1) % size;
            }
            self.places[at] = number as u32 + 1;
            false
        })
    }
}

/// Checks the keys of any operation.
///
/// # Errors
/// There are none, or one of them is 0.
pub fn check_keys(keys: &[u64]) -> Result<(), OperationError> {
    if keys.is_empty() {
        return Err(OperationError::NoKeys);
    }
    if keys.contains(&0) {
        return Err(OperationError::ZeroKey);
    }
    Ok(())
}

/// Checks any operation.
///
/// # Errors
/// No valid stream contains it.
pub fn check(operation: &Operation, seen: &mut Seen) -> Result<(), OperationError> {
    match operation {
        Operation::Stored { parent, keys, .. } => {
            check_keys(keys)?;
            if keys.contains(parent) || seen.any_twice(keys) {
                return Err(OperationError::Twice);
            }
            Ok(())
        }
        Operation::Removed { keys, .. } => check_keys(keys),
        Operation::Cleared => Ok(()),
    }
}
