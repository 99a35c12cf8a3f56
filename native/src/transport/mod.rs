//! HTTP transport: a server, a client of workers, and a relay of streams between them, on threads of their own.
//!
//! Python decides; what happens here is told to it in batches (`completions`). No thread here takes Python's lock.

pub mod client;
pub mod completions;
pub mod panics;
pub mod relay;
pub mod reply_body;
pub mod server;
pub mod threads;
pub mod tls;
