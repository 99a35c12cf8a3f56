//! An endpoint picker for Envoy: `ext_proc` over gRPC. Who answers a request, and what a worker is sent, a `PickerApp` says.
//!
//! `stream` is one request, `heads` what is read and changed of heads, `watch` what is learnt of an answer.

mod heads;
pub mod messages;
mod stream;
mod watch;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch as channel};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use self::messages::{HealthCheckRequest, HealthCheckResponse, ProcessingRequest, ProcessingResponse};
pub use self::stream::{Event, Pick, Route};
pub use self::watch::Known;
use crate::transport::panics::Panics;
use crate::transport::server::{Asked, Ends, Piece};
use crate::transport::tls::{Presented, Unusable};

const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
const HEALTH: &str = "/grpc.health.v1.Health/Check";
/// Requests at once on a connection: Envoy has one for each of its threads.
const STREAMS: u32 = 16 * 1024;
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
/// Messages that wait to be taken by Envoy, on one stream.
const WAITING: usize = 8;
/// What a message has besides a body.
const HEAD_BYTES: usize = 256 * 1024;
/// A silent Envoy is asked whether it is there; it has as long to answer.
const PING: Duration = Duration::from_secs(20);
/// Pause after a connection that could not be taken, and the longest handshake.
const PAUSE: Duration = Duration::from_millis(100);
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What decides; its methods are called by the transport's threads, and must not block.
pub trait PickerApp: Send + Sync + 'static {
    /// A request is there: it is answered, or routed by `pick`.
    fn asked(&self, asked: Asked, pick: Arc<Pick>);
    /// A piece of a body, which was asked for under this number.
    fn piece(&self, number: u64, piece: Piece);
    /// Something comes of an answer, which is told under this number.
    fn told(&self, number: u64, event: Event);
    /// Envoy has ended this request before its end.
    fn left(&self, key: u64);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Stage {
    Open,
    Leaving,
    Stopping,
    Cut,
}

/// What the connections of a picker share.
pub(crate) struct Shared {
    app: Box<dyn PickerApp>,
    body_bytes: usize,
    panics: Arc<Panics>,
    presented: Presented,
    stage: channel::Sender<Stage>,
    keys: AtomicU64,
    connections: AtomicUsize,
}

impl Shared {
    fn key(&self) -> u64 {
        self.keys.fetch_add(1, Ordering::Relaxed)
    }
}

/// A server for Envoys; dropping it cuts their connections.
pub struct Picker {
    shared: Arc<Shared>,
    event_loops: Arc<[Handle]>,
    listening: Mutex<Vec<AbortHandle>>,
}

impl Picker {
    /// Makes a server that listens nowhere yet; `body_bytes` bounds a body that comes in one message.
    pub fn new(app: Box<dyn PickerApp>, body_bytes: usize, panics: Arc<Panics>, event_loops: &[Handle]) -> Self {
        let (stage, _) = channel::channel(Stage::Open);
        let (presented, keys, connections) = (Presented::default(), AtomicU64::new(0), AtomicUsize::new(0));
        let shared = Shared { app, body_bytes, panics, presented, stage, keys, connections };
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
        let accepting = first.spawn(accept(socket, Arc::clone(&self.shared), Arc::clone(&self.event_loops)));
        self.listening.lock().unwrap_or_else(PoisonError::into_inner).push(accepting.abort_handle());
        Ok(())
    }

    /// From now on it says that it does not serve.
    pub fn leave(&self) {
        self.advance(Stage::Leaving);
    }

    /// Takes no more connections, and asks Envoys for nothing more on theirs.
    pub fn stop(&self) {
        for accepting in self.listening.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            accepting.abort();
        }
        self.advance(Stage::Stopping);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.stop();
        self.advance(Stage::Cut);
    }

    fn advance(&self, to: Stage) {
        self.shared.stage.send_if_modified(|stage| {
            let later = to > *stage;
            if later {
                *stage = to;
            }
            later
        });
    }

    /// Open connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Picker {
    fn drop(&mut self) {
        self.cut();
    }
}

/// One connection among those that a shutdown waits for, until it is dropped.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes connections until it is aborted.
async fn accept(socket: tokio::net::TcpListener, shared: Arc<Shared>, event_loops: Arc<[Handle]>) {
    for turn in 0.. {
        let Ok((stream, client)) = socket.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let (Ok(()), Ok(server)) = (stream.set_nodelay(true), stream.local_addr()) else { continue };
        let Ok(stream) = stream.into_std() else { continue };
        let (ends, shared) = (Arc::new(Ends::new(client, server)), Arc::clone(&shared));
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(shared);
        event_loops[turn % event_loops.len()].spawn(async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                connected(stream, ends, &counted.0).await;
            }
        });
    }
}

async fn connected(stream: TcpStream, ends: Arc<Ends>, shared: &Arc<Shared>) {
    match shared.presented.now() {
        None => serve(stream, ends, false, shared).await,
        Some(config) => {
            let handshake = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await;
            if let Ok(Ok(stream)) = handshake {
                serve(stream, ends, true, shared).await;
            }
        }
    }
}

async fn serve<IO>(io: IO, ends: Arc<Ends>, secure: bool, shared: &Arc<Shared>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let own = Arc::clone(shared);
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .serve_connection(
            TokioIo::new(io),
            service_fn(move |request| {
                let call = Call { shared: Arc::clone(&own), ends: Arc::clone(&ends), secure };
                async move { Ok::<_, Infallible>(call.answer(request).await) }
            }),
        );
    let (mut serving, mut stage) = (std::pin::pin!(serving), shared.stage.subscribe());
    loop {
        match *stage.borrow_and_update() {
            Stage::Open | Stage::Leaving => {}
            Stage::Stopping => serving.as_mut().graceful_shutdown(),
            Stage::Cut => return,
        }
        tokio::select! {
            biased;
            _ = serving.as_mut() => return,
            changed = stage.changed() => if changed.is_err() { return },
        }
    }
}

/// One call of gRPC.
struct Call {
    shared: Arc<Shared>,
    ends: Arc<Ends>,
    secure: bool,
}

impl Call {
    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        match request.uri().path() {
            PROCESS => {
                let bytes = self.shared.body_bytes + HEAD_BYTES;
                let codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
                Grpc::new(codec).max_decoding_message_size(bytes).streaming(Process(self), request).await
            }
            HEALTH => {
                let codec = ProstCodec::<HealthCheckResponse, HealthCheckRequest>::default();
                let serves = *self.shared.stage.borrow() == Stage::Open;
                Grpc::new(codec).unary(Health(serves), request).await
            }
            _ => Status::unimplemented("").into_http(),
        }
    }
}

type Answered<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;

/// `ExternalProcessor.Process`.
struct Process(Call);

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = ReceiverStream<Result<ProcessingResponse, Status>>;
    type Future = Answered<Self::ResponseStream>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let (to, told) = mpsc::channel(WAITING);
        let stream = stream::Stream { from: request.into_inner(), to: to.clone() };
        let (shared, ends, secure) = (Arc::clone(&self.0.shared), Arc::clone(&self.0.ends), self.0.secure);
        tokio::spawn(async move {
            let told = match shared.panics.caught(stream::follow(&shared, ends, secure, stream)).await {
                Some(Ok(())) => return, // the stream ends
                Some(Err(gone)) => gone.told(),
                None => Err(Status::internal("a panic")),
            };
            let _ = to.send(told).await;
        });
        Box::pin(async move { Ok(tonic::Response::new(ReceiverStream::new(told))) })
    }
}

/// `Health.Check`, of whichever service.
struct Health(bool);

impl UnaryService<HealthCheckRequest> for Health {
    type Response = HealthCheckResponse;
    type Future = Answered<HealthCheckResponse>;

    fn call(&mut self, _: tonic::Request<HealthCheckRequest>) -> Self::Future {
        let status = if self.0 { 1 } else { 2 };
        Box::pin(async move { Ok(tonic::Response::new(HealthCheckResponse { status })) })
    }
}
