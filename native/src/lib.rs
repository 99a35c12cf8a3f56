//! Native backend of block keys, digests, the block index, scoring and the HTTP transport. Everything but `python` is plain Rust.

pub mod ask;
pub mod digest;
pub mod frame;
pub mod headers;
pub mod index;
pub mod json;
pub mod json_bounds;
pub mod json_members;
pub mod keyer;
pub mod mixing;
mod msgpack;
pub mod outline;
pub mod picker;
pub mod plane;
pub mod prompts;
pub mod reader;
pub mod reuse;
pub mod score;
pub mod throughput;
pub mod transport;

#[cfg(feature = "python")]
pub(crate) mod python;
