//! A server of any protocol: takes connections, gives them to the event loops by turns, and ends in steps.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::{App, Ends};
use crate::transport::panics::Panics;
use crate::transport::tls::{Presented, Unusable};

/// Pause after a connection that could not be taken: the process has too many open files, as a rule.
const PAUSE: Duration = Duration::from_millis(100);

/// What is spoken on connections.
pub trait Protocol: Send + Sync + 'static {
    /// Serves one connection until it ends.
    fn connected(self: Arc<Self>, stream: TcpStream, ends: Ends, counted: Counted) -> Serving;
}

/// A connection that is served.
pub type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How far the shutdown has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Connections are kept.
    Open,
    /// Clients are to go elsewhere.
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
    pub app: Arc<dyn App>,
    pub panics: Arc<Panics>,
    pub presented: Presented,
    stage: watch::Sender<Stage>,
    keys: AtomicU64,
    connections: AtomicUsize,
}

impl Shared {
    /// How far the shutdown is.
    pub fn stage(&self) -> Stage {
        *self.stage.borrow()
    }

    /// Tells how far the shutdown is, and when that changes.
    pub fn stages(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }
}

/// One connection among those that a shutdown waits for, until it is dropped.
pub struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: Arc<Shared>) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }

    /// What its connection shares with others.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client that waits for its answer; the application is told where it leaves before that has settled.
pub struct Presence {
    shared: Arc<Shared>,
    /// The request's number on its server.
    pub key: u64,
    settled: AtomicBool,
}

impl Presence {
    /// Of the client of a new request.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        let key = shared.keys.fetch_add(1, Ordering::Relaxed);
        Self { shared, key, settled: AtomicBool::new(false) }
    }

    /// The answer is whole.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if !*self.settled.get_mut() {
            self.shared.app.left(self.key);
        }
    }
}

/// A server; dropping it cuts its connections.
pub struct Server {
    shared: Arc<Shared>,
    protocol: Arc<dyn Protocol>,
    event_loops: Arc<[Handle]>,
    listening: Mutex<Vec<AbortHandle>>,
}

impl Server {
    /// Makes a server that listens nowhere yet.
    pub fn new(app: Arc<dyn App>, protocol: Arc<dyn Protocol>, panics: Arc<Panics>, event_loops: &[Handle]) -> Self {
        let (stage, _) = watch::channel(Stage::Open);
        let (presented, keys, connections) = (Presented::default(), AtomicU64::new(0), AtomicUsize::new(0));
        let shared = Shared { app, panics, presented, stage, keys, connections };
        Self { shared: Arc::new(shared), protocol, event_loops: event_loops.into(), listening: Mutex::default() }
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
        let (shared, protocol) = (Arc::clone(&self.shared), Arc::clone(&self.protocol));
        let accepting = first.spawn(accept(socket, shared, protocol, Arc::clone(&self.event_loops))).abort_handle();
        self.listening.lock().unwrap_or_else(PoisonError::into_inner).push(accepting);
        Ok(())
    }

    /// One connection more, that somebody else has taken.
    pub fn count(&self) -> Counted {
        Counted::new(Arc::clone(&self.shared))
    }

    /// From now on clients are told to go elsewhere.
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

/// Takes connections until it is aborted.
async fn accept(
    socket: tokio::net::TcpListener,
    shared: Arc<Shared>,
    protocol: Arc<dyn Protocol>,
    event_loops: Arc<[Handle]>,
) {
    for turn in 0.. {
        let event_loop = &event_loops[turn % event_loops.len()];
        match socket.accept().await {
            // An error means that the client is gone already.
            Ok((stream, client)) => drop(begin(stream, client, &shared, &protocol, event_loop)),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

fn begin(
    stream: TcpStream,
    client: SocketAddr,
    shared: &Arc<Shared>,
    protocol: &Arc<dyn Protocol>,
    event_loop: &Handle,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let ends = Ends::new(client, stream.local_addr()?);
    let (counted, protocol) = (Counted::new(Arc::clone(shared)), Arc::clone(protocol));
    if event_loop.id() == Handle::current().id() {
        tokio::spawn(protocol.connected(stream, ends, counted));
        return Ok(());
    }
    let stream = stream.into_std()?;
    event_loop.spawn(async move {
        if let Ok(stream) = TcpStream::from_std(stream) {
            protocol.connected(stream, ends, counted).await;
        }
    });
    Ok(())
}
