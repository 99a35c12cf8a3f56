//! Block keys and the block index of cachefleet. Everything but `python` is plain Rust.

pub mod digest;
pub mod index;
pub mod keyer;
pub mod mixing;
pub mod reader;

#[cfg(feature = "python")]
mod python;
