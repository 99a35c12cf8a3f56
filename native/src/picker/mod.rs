//! An endpoint picker for Envoy: `ext_proc` over gRPC. Who answers a request, and what a worker is sent, a `PickerApp` says.
//!
//! `assembly` bounds messages, `stream` is one request, `heads` what is read and changed of heads, `watch` what is learnt of an answer.

mod assembly;
mod heads;
pub mod messages;
mod stream;
mod watch;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use self::assembly::{Held, Messages, Room};
use self::messages::{HealthCheckRequest, HealthCheckResponse, ProcessingRequest, ProcessingResponse};
use self::stream::Stream;
pub use self::stream::{Event, Pick, Route};
pub use self::watch::Known;
use crate::transport::server::{App, Asked, Counted, Ends, Protocol, Serving, Shared, Stage};

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
/// What decides; its methods are called by the transport's threads, and must not block.
pub trait PickerApp: App {
    /// A request is there: it is answered, or routed by `pick`.
    fn asked(&self, asked: Asked, pick: Arc<Pick>);
    /// Something comes of an answer, which is told under this number.
    fn told(&self, number: u64, event: Event);
}

/// `ext_proc`, as a server's protocol.
pub struct Picker {
    app: Arc<dyn PickerApp>,
    /// Of a message: the longest body that comes in one, and what else it has.
    message_bytes: usize,
    room: Arc<Room>,
    /// How long the first request of a connection, and the head of each, may take.
    head: Duration,
}

impl Picker {
    /// A body that comes in one message has at most `body_bytes`, all messages under way `buffer_bytes`.
    pub fn new(app: Arc<dyn PickerApp>, body_bytes: usize, buffer_bytes: usize, head: Duration) -> Self {
        Self { app, message_bytes: body_bytes + HEAD_BYTES, room: Room::new(buffer_bytes), head }
    }
}

impl Protocol for Picker {
    fn connected(self: Arc<Self>, stream: TcpStream, ends: Ends, counted: Counted) -> Serving {
        Box::pin(async move {
            match counted.shared().presented.now() {
                None => serve(stream, ends, false, self, &counted).await,
                Some(config) => {
                    let handshake = timeout(self.head, TlsAcceptor::from(config).accept(stream)).await;
                    if let Ok(Ok(stream)) = handshake {
                        serve(stream, ends, true, self, &counted).await;
                    }
                }
            }
        })
    }
}

/// Serves a connection; it is cut where nothing is asked on it for too long at its beginning.
async fn serve<IO>(io: IO, ends: Ends, secure: bool, picker: Arc<Picker>, counted: &Counted)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (first, mut stage) = (tokio::time::sleep(picker.head), counted.shared().stages());
    let begun = Arc::new(AtomicBool::new(false));
    let own = Call { picker, shared: Arc::clone(counted.shared()), ends: Arc::new(ends), secure, begun };
    let begun = Arc::clone(&own.begun);
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
                let call = own.clone();
                async move { Ok::<_, Infallible>(call.answer(request).await) }
            }),
        );
    let (mut serving, mut first, mut waits) = (std::pin::pin!(serving), std::pin::pin!(first), true);
    loop {
        match *stage.borrow_and_update() {
            Stage::Open | Stage::Leaving => {}
            Stage::Stopping(_) => serving.as_mut().graceful_shutdown(),
            Stage::Cut => return,
        }
        tokio::select! {
            biased;
            _ = serving.as_mut() => return,
            changed = stage.changed() => if changed.is_err() { return },
            () = first.as_mut(), if waits => {
                if !begun.load(Ordering::Relaxed) {
                    return;
                }
                waits = false;
            }
        }
    }
}

/// One call of gRPC.
#[derive(Clone)]
struct Call {
    picker: Arc<Picker>,
    shared: Arc<Shared>,
    ends: Arc<Ends>,
    secure: bool,
    /// Something was asked on the connection.
    begun: Arc<AtomicBool>,
}

impl Call {
    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        self.begun.store(true, Ordering::Relaxed);
        match request.uri().path() {
            PROCESS => {
                let bytes = self.picker.message_bytes;
                let held = Held::new(&self.picker.room);
                let request = request.map(|body| Messages::new(body, Arc::clone(&held), bytes));
                let codec = ProstCodec::<ProcessingResponse, ProcessingRequest>::default();
                Grpc::new(codec).max_decoding_message_size(bytes).streaming(Process(self, held), request).await
            }
            HEALTH => {
                let codec = ProstCodec::<HealthCheckResponse, HealthCheckRequest>::default();
                let serves = self.shared.stage() == Stage::Open;
                Grpc::new(codec).unary(Health(serves), request).await
            }
            _ => Status::unimplemented("").into_http(),
        }
    }
}

type Answered<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;

/// `ExternalProcessor.Process`.
struct Process(Call, Arc<Held>);

impl StreamingService<ProcessingRequest> for Process {
    type Response = ProcessingResponse;
    type ResponseStream = ReceiverStream<Result<ProcessingResponse, Status>>;
    type Future = Answered<Self::ResponseStream>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let (to, told) = mpsc::channel(WAITING);
        let stream = Stream::new(request.into_inner(), to.clone(), Arc::clone(&self.1));
        let call = self.0.clone();
        tokio::spawn(async move {
            let failed = match call.shared.panics.caught(stream::follow(&call, stream)).await {
                Some(Ok(())) => return, // the stream ends
                Some(Err(gone)) => gone.0,
                None => Status::internal("a panic"),
            };
            let _ = to.send(Err(failed)).await;
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
