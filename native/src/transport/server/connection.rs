//! Drives one connection until it ends, its deadline passes, or it is cut.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::Response;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep_until;
use tokio_rustls::TlsAcceptor;

use super::answer::AnswerBody;
use super::exchange::{exchange, exchange_on_stream};
use super::heads::Heads;
use super::line::{Line, Socket};
use super::long_answer;
use super::progress::{Due, Progress};
use super::streams::Streams;
use super::{Bounds, Counted, Http, Shared, Stage};
use crate::transport::tls::HTTP2;

/// Bytes of a request's head; heads have at most 100 fields, which is hyper's own bound.
const HEAD_BYTES: u32 = 64 * 1024;

/// Requests at once on a connection of HTTP/2.
const STREAMS: u32 = 256;
/// Bytes of a request's body, and of all of a connection's, that may come before they are read.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = 512 * 1024;
/// Bytes of an answer that wait for a client's windows.
const SEND_BYTES: usize = 64 * 1024;
/// Streams that a client may open and reset before they are looked at, and errors of its streams, before it is cut.
const RESETS: usize = 20;
const ERRORS: usize = 1024;
/// A client that is silent is asked whether it is there; it has as long to answer.
const PING: Duration = Duration::from_secs(20);

/// Addresses and ports of the two ends of a connection.
#[derive(Debug, PartialEq, Eq)]
pub struct Ends {
    pub client: (String, u16),
    pub server: (String, u16),
}

impl Ends {
    /// As the sockets know them.
    #[must_use]
    pub fn new(client: SocketAddr, server: SocketAddr) -> Self {
        let [client, server] =
            [client, server].map(|address| (address.ip().to_canonical().to_string(), address.port()));
        Self { client, server }
    }
}

/// What the parts of one connection share.
pub struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) http: Arc<Http>,
    pub(super) progress: Arc<Progress>,
    /// Of requests of HTTP/1.
    pub(super) heads: Arc<Heads>,
    pub(super) ends: Arc<Ends>,
    /// TLS is spoken.
    pub(super) secure: bool,
    /// An answer that is to be sent without hyper.
    handed: Mutex<Option<Response<AnswerBody>>>,
}

impl Connection {
    pub(super) fn handed(&self) -> MutexGuard<'_, Option<Response<AnswerBody>>> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves a connection: HTTP/1, or behind TLS what the client prefers of HTTP/2 and HTTP/1.
pub async fn serve<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    io: IO,
    ends: Ends,
    counted: Counted,
    http: Arc<Http>,
) {
    let shared = Arc::clone(counted.shared());
    let progress = Arc::new(Progress::new(counted));
    let socket = Socket::new(io, Arc::clone(&progress));
    let tls = shared.presented.now();
    let (ends, secure) = (Arc::new(ends), tls.is_some());
    let heads = Arc::default();
    let connection = Arc::new(Connection { shared, http, progress, heads, ends, secure, handed: Mutex::default() });
    match tls {
        None => serve_http1(socket, &connection).await,
        // What only some connections come to is no part of all of them: here and below it has a place of its own.
        Some(config) => Box::pin(serve_tls(socket, config, &connection)).await,
    }
    drop(connection.progress.handed_over()); // whoever holds on to one of its requests is not waited for
}

/// The handshake counts to the time of the first head.
async fn serve_tls<IO>(io: IO, config: Arc<ServerConfig>, connection: &Arc<Connection>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut handshake = Box::pin(TlsAcceptor::from(config).accept(io));
    let handshake = drive(handshake.as_mut(), connection, |_| {}, |_| Poll::Pending).await;
    let Some(Ok(stream)) = handshake else { return };
    if stream.get_ref().1.alpn_protocol() == Some(HTTP2) {
        Box::pin(serve_http2(stream, connection)).await;
    } else {
        Box::pin(serve_http1(stream, connection)).await;
    }
}

async fn serve_http1<IO>(io: IO, connection: &Arc<Connection>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (line, own) = (Line::new(io, Arc::clone(&connection.progress)), Arc::clone(connection));
    line.check_heads(Arc::clone(&connection.heads));
    let requests = || {
        let own = Arc::clone(&own);
        http1::Builder::new()
            .half_close(true) // it would hold a buffer to read into while it answers: `poll_left` sees who leaves
            .header_read_timeout(None)
            .max_header_size(HEAD_BYTES as usize)
            .max_buf_size(HEAD_BYTES as usize)
            .serve_connection(
                TokioIo::new(line.clone()),
                service_fn(move |request| exchange(Arc::clone(&own), request)),
            )
            .with_upgrades()
    };
    let serving = async {
        loop {
            line.first().await; // before it, no buffers are held
            let mut serving = Box::new(requests());
            let Some(response) = handed(&mut serving, connection).await else { return };
            let Some(parts) = (*serving).into_parts() else { return };
            line.put_back(&parts.read_buf);
            drop(parts);
            if long_answer::send(&mut line.clone(), response).await.is_err() {
                return;
            }
        }
    };
    drive(pin!(serving), connection, |_| {}, |context| line.poll_left(context)).await;
    end(line, connection).await;
}

/// The answer that is to be sent without hyper; None where its connection has ended.
async fn handed<F: Future + Unpin>(serving: &mut F, connection: &Connection) -> Option<Response<AnswerBody>> {
    poll_fn(|context| match Pin::new(&mut *serving).poll(context) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => connection.handed().take().map_or(Poll::Pending, |response| Poll::Ready(Some(response))),
    })
    .await
}

async fn serve_http2<IO>(io: IO, connection: &Arc<Connection>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connection.progress.multiplexed();
    let (line, own) = (Line::new(io, Arc::clone(&connection.progress)), Arc::clone(connection));
    line.count_frames();
    let serving = http2::Builder::new(Streams(connection.http.bounds.send))
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES)
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BYTES)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(ERRORS)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .serve_connection(
            TokioIo::new(line.clone()),
            service_fn(move |request| exchange_on_stream(Arc::clone(&own), request)),
        );
    // It reads as long as it can: whoever leaves is noticed.
    drive(pin!(serving), connection, http2::Connection::graceful_shutdown, |_| Poll::Pending).await;
    end(line, connection).await;
}

/// Lingers, unless the connection was cut or goes on as something else.
async fn end<IO: AsyncRead + AsyncWrite + Unpin>(mut line: Line<IO>, connection: &Connection) {
    drop(connection.progress.handed_over()); // whoever holds on to one of its requests is not waited for
    if connection.progress.lingers() {
        Box::pin(line.linger(connection.http.bounds.linger)).await;
    }
}

/// What `serving` returns; None where it has to end, or the client has `left`. `leave` has it tell the client to ask
/// nothing more.
async fn drive<F: Future>(
    mut serving: Pin<&mut F>,
    connection: &Connection,
    leave: impl Fn(Pin<&mut F>),
    left: impl Fn(&mut Context<'_>) -> Poll<()>,
) -> Option<F::Output> {
    let (progress, bounds) = (&connection.progress, &connection.http.bounds);
    let mut stage = connection.shared.stages();
    let mut timer = pin!(sleep_until(wake_at(progress, bounds, *stage.borrow_and_update()).into()));
    loop {
        tokio::select! {
            biased;
            // An error is the client's: it is gone, or has had its answer.
            served = &mut serving => return Some(served),
            () = poll_fn(&left) => return None,
            () = progress.cut.notified() => return None,
            () = progress.begins.notified() => {}
            _ = stage.changed() => {}
            () = &mut timer => {}
        }
        let now = *stage.borrow_and_update();
        match progress.due(bounds, now).filter(|(at, _)| *at <= Instant::now()) {
            Some((_, Due::Leave)) if now != Stage::Cut => {
                leave(serving.as_mut());
                progress.left();
            }
            None if now != Stage::Cut => {}
            _ => return None,
        }
        timer.as_mut().reset(wake_at(progress, bounds, now).into());
    }
}

/// Returns once a client has taken nothing for too long, on a connection that goes on as something else than HTTP.
pub(super) async fn stuck(progress: &Progress, bounds: &Bounds) {
    while progress.due(bounds, Stage::Open).is_none_or(|(at, _)| at > Instant::now()) {
        sleep_until(wake_at(progress, bounds, Stage::Open).into()).await;
    }
}

/// When to look at the deadline next: it may have come to be while the connection went on.
fn wake_at(progress: &Progress, bounds: &Bounds, stage: Stage) -> Instant {
    let phase = if matches!(stage, Stage::Stopping(_)) { bounds.settle } else { bounds.head };
    let latest = Instant::now() + phase.min(bounds.send);
    progress.due(bounds, stage).map_or(latest, |(at, _)| at.min(latest))
}
