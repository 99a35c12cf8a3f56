//! HTTP server: connections, their deadlines, and a shutdown in steps. What a request asks is left to an `App`.
//!
//! `exchange` is one request and its answer, `connection` drives one connection, `line` is its input and output,
//! whose `heads` are checked for what hyper takes and others may read differently.
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
pub use connection::Ends;
pub use exchange::{Asked, Cut};
pub use request_body::{Piece, RequestBody};
pub use streams::Pace;
pub use websocket::{Tap, Taps, Websockets};

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::panics::Panics;
use super::tls::{Presented, Unusable};

/// What answers requests; its methods are called by the transport's threads, and must not block.
pub trait App: Send + Sync + 'static {
    /// A request is there.
    fn asked(&self, asked: Asked);
    /// A piece of a body, which was asked for under this number.
    fn piece(&self, number: u64, piece: Piece);
    /// The client of this request left before its answer was whole.
    fn left(&self, key: u64);
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

/// How far the shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Connections are kept.
    Open,
    /// Each answer that begins ends its connection.
    Leaving,
    /// Idle connections are closed, since this time.
    Stopping(Instant),
    /// All connections are cut.
    Cut,
}

impl Stage {
    fn rank(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Leaving => 1,
            Self::Stopping(_) => 2,
            Self::Cut => 3,
        }
    }
}

/// What the connections of a server share.
pub struct Shared {
    app: Box<dyn App>,
    bounds: Bounds,
    websockets: Option<Websockets>,
    panics: Arc<Panics>,
    presented: Presented,
    stage: watch::Sender<Stage>,
    keys: AtomicU64,
    connections: AtomicUsize,
}

impl Shared {
    fn key(&self) -> u64 {
        self.keys.fetch_add(1, Ordering::Relaxed)
    }

    fn stage(&self) -> Stage {
        *self.stage.borrow()
    }
}

/// One connection among those that a shutdown waits for, until it is dropped.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A server; dropping it cuts its connections.
pub struct Server {
    shared: Arc<Shared>,
    event_loops: Arc<[Handle]>,
    listening: Mutex<Vec<AbortHandle>>,
}

impl Server {
    /// Makes a server that listens nowhere yet. Each `WebSocket` is passed on to another one.
    pub fn new(
        app: Box<dyn App>,
        bounds: Bounds,
        websockets: Option<Websockets>,
        panics: Arc<Panics>,
        event_loops: &[Handle],
    ) -> Self {
        let (stage, _) = watch::channel(Stage::Open);
        let (keys, connections) = (AtomicU64::new(0), AtomicUsize::new(0));
        let presented = Presented::default();
        let shared = Shared { app, bounds, websockets, panics, presented, stage, keys, connections };
        Self { shared: Arc::new(shared), event_loops: event_loops.into(), listening: Mutex::default() }
    }

    /// Serves connections that come from now on by TLS, with this certificate and private key (PEM).
    ///
    /// # Errors
    /// They cannot be used; what was presented before stays.
    pub fn present(&self, certificate: &[u8], key: &[u8]) -> Result<(), Unusable> {
        self.shared.presented.present(certificate, key)
    }

    /// Takes connections from a socket that listens; connections go to the event loops by turns.
    ///
    /// # Errors
    /// The socket cannot be polled.
    pub fn listen(&self, socket: TcpListener) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let first = &self.event_loops[0];
        let _entered = first.enter();
        let socket = tokio::net::TcpListener::from_std(socket)?;
        let (shared, event_loops) = (Arc::clone(&self.shared), Arc::clone(&self.event_loops));
        let accepting = first.spawn(listener::accept(socket, shared, event_loops)).abort_handle();
        self.listening.lock().unwrap_or_else(PoisonError::into_inner).push(accepting);
        Ok(())
    }

    /// Serves one connection that somebody else has taken.
    pub fn serve<IO>(&self, io: IO, ends: Ends) -> impl Future<Output = ()> + Send + use<IO>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        connection::serve(io, ends, Counted::new(Arc::clone(&self.shared)))
    }

    /// From now on each answer that begins ends its connection.
    pub fn leave(&self) {
        self.advance(Stage::Leaving);
    }

    /// Takes no more connections, and closes those that are idle.
    pub fn stop(&self) {
        for accepting in self.listening.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            accepting.abort();
        }
        self.advance(Stage::Stopping(Instant::now()));
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.stop();
        self.advance(Stage::Cut);
    }

    fn advance(&self, to: Stage) {
        self.shared.stage.send_if_modified(|stage| {
            let later = to.rank() > stage.rank();
            if later {
                *stage = to;
            }
            later
        });
    }

    /// Connections that are open, but for those that only wait for their client to read.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.cut();
    }
}
