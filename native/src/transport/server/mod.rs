//! HTTP server: connections and their deadlines. What a request asks is left to an `App`.
//!
//! `listener` takes connections, whatever is spoken on them, and ends in steps. `exchange` is one request and its answer,
//! `connection` drives one connection, `line` is its input and output, whose `heads` are checked for what hyper takes and others may read differently.
//! HTTP/2 is spoken behind TLS alone; its requests are `streams`.

mod answer;
mod connection;
mod exchange;
mod frames;
mod heads;
mod line;
mod listener;
mod long_answer;
mod messages;
mod progress;
mod request_body;
mod streams;
#[cfg(test)]
mod tests;
mod websocket;

pub use answer::{Answer, AnswerKind};
pub use connection::{Ends, serve};
pub use exchange::{Asked, Cut};
pub use listener::{Counted, Presence, Protocol, Server, Serving, Shared, Stage};
pub use request_body::{Piece, RequestBody};
pub use streams::Pace;
pub use websocket::{Tap, Taps, Websockets};

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;

/// What is told of requests; its methods are called by the transport's threads, and must not block.
pub trait App: Send + Sync + 'static {
    /// A piece of a body, which was asked for under this number.
    fn piece(&self, number: u64, piece: Piece);
    /// The client of this request left before its answer was whole.
    fn left(&self, key: u64);
}

/// What answers requests of HTTP.
pub trait HttpApp: App {
    /// A request is there.
    fn asked(&self, asked: Asked);
}

/// How long clients may take.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// For a head.
    pub head: Duration,
    /// Between an answer and the next request's first byte.
    pub idle: Duration,
    /// Without taking anything of an answer.
    pub send: Duration,
    /// An idle connection stays open for this long once the server stops.
    pub settle: Duration,
    /// To read an answer after which the connection ends.
    pub linger: Duration,
}

/// HTTP, with `WebSockets` that are passed on to another server, where there is one.
pub struct Http {
    pub app: Arc<dyn HttpApp>,
    pub bounds: Bounds,
    pub websockets: Option<Websockets>,
}

impl Protocol for Http {
    fn connected(self: Arc<Self>, stream: TcpStream, ends: Ends, counted: Counted) -> Serving {
        Box::pin(serve(stream, ends, counted, self))
    }
}
