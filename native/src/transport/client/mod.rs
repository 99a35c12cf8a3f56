//! HTTP/1.1 client of workers, with TLS where it is asked for: pooled connections, connect and idle bounds, bounded answers.
//!
//! Heads and bodies are read by pure code (`head`, `body`); a request's own task does all reading and writing, so that
//! to drop it cuts the connection at once, which frees the worker.

mod body;
mod call;
mod connection;
mod head;
mod held;
mod pool;
mod request;
mod stream;

use std::time::Duration;

pub use body::BodyDecoder;
pub use call::{Answer, Cut, Opened, Whole, open};
pub use head::{Framing, Head, read_head};
pub use held::{Held, Waiting, hold};
pub use request::{Request, Unsupported};
pub use stream::{Trust, Verified};

use pool::Pool;

/// Why there is no answer, or no more of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection in time, or no such name.
    Unreachable,
    /// Nothing listens at the address.
    ConnectionRefused,
    /// No connection: why its TLS or certificate is not accepted. Nothing was sent.
    Untrusted(&'static str),
    /// Connected, but no byte for longer than the bound.
    Silent,
    /// The connection broke or ended too soon, or what came is no HTTP answer.
    Lost,
    /// An event is longer than the bound, or what comes of a held request is no frame.
    Oversized,
    /// A held request whose keys are compressed.
    Undecodable,
}

impl Failure {
    /// Its name, for Python.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::ConnectionRefused => "connection_refused",
            Self::Untrusted(_) => "untrusted",
            Self::Silent => "silent",
            Self::Lost => "lost",
            Self::Oversized => "oversized",
            Self::Undecodable => "undecodable",
        }
    }

    /// Why TLS is not accepted; "" for other failures.
    #[must_use]
    pub fn reason(self) -> &'static str {
        if let Self::Untrusted(reason) = self { reason } else { "" }
    }
}

/// Bounds of all requests.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// For a name to be found, and then for each of its addresses.
    pub connect: Duration,
    /// Without a byte, once connected.
    pub idle: Duration,
    /// How long a connection may wait for its next request.
    pub keep_alive: Duration,
    /// Bytes of a body that is given whole; a longer one is read on demand, so that whoever reads can bound it.
    pub whole: usize,
}

/// Sends requests; connections stay on the thread that made them.
pub struct Client {
    bounds: Bounds,
    pool: Pool,
}

impl Client {
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, pool: Pool::new(bounds.keep_alive) }
    }

    /// Closes connections that wait for a request, also those that will.
    pub fn close(&self) {
        self.pool.close();
    }
}
