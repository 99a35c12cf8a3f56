//! An index as bytes, for a replica that joins and for a restart.
//!
//! All numbers little-endian. Head: magic, version and zero (u32 each), length and checksum of the body (u64 each). Body:
//! workers (count, then names behind their lengths, UTF-8); sets (count, then members behind their count: places in the
//! list of workers, ascending); for each tier the runs: count, then for each its blocks, its pieces, a piece as end and
//! place in the list of sets, and the keys (u64). Counts and places are u32. Holes and forgotten workers are left out.

mod read;
mod write;

pub use write::seal;

use super::sets::{SetId, Sets};
use crate::mixing::fold;

const MAGIC: [u8; 8] = *b"CFINDEX\0";
const VERSION: u32 = 1;
/// Bytes before the body.
pub const HEAD: usize = 32;

/// Why bytes are no snapshot; it names the field. The index is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    Magic,
    Version(u32),
    Length,
    Checksum,
    /// More than the index may hold, of this.
    Bound(&'static str),
    Field(&'static str),
}

impl std::fmt::Display for SnapshotError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => to.write_str("magic: not a snapshot of an index"),
            Self::Version(version) => write!(to, "version: {version}, this reads {VERSION}"),
            Self::Length => to.write_str("length: not that of the body"),
            Self::Checksum => to.write_str("checksum: does not agree with the body"),
            Self::Bound(what) => write!(to, "{what}: more than the index may hold"),
            Self::Field(name) => write!(to, "{name}: not what an index writes"),
        }
    }
}

fn checksum(body: &[u8]) -> u64 {
    const KEYS: [u64; 2] = [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7345];
    let (words, rest) = body.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().chain(std::iter::once(&last)).fold(KEYS[0] ^ body.len() as u64, |sum, word| {
        fold(sum ^ u64::from_le_bytes(*word), KEYS[1]).wrapping_add(sum.rotate_left(23))
    })
}

/// The slots of a mask that are in a set.
fn slots<'a>(sets: &'a Sets, set: SetId, mask: &'a [u64]) -> impl Iterator<Item = u32> + 'a {
    sets.words(set).flat_map(|word| {
        let bits = word.bits & mask.get(word.number as usize).unwrap_or(&0);
        (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word.number * 64 + bit)
    })
}
