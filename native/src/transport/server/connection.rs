//! Drives one connection until it ends, its deadline passes, or it is cut.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep_until;

use super::exchange::exchange;
use super::line::Line;
use super::progress::Progress;
use super::{Bounds, Counted, Shared, Stage};

/// Bytes of a request's head; heads have at most 100 fields, which is hyper's own bound.
const HEAD_BYTES: usize = 64 * 1024;

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
    pub(super) progress: Arc<Progress>,
    pub(super) ends: Arc<Ends>,
}

/// Serves HTTP/1 on a connection.
pub(super) async fn serve<IO: AsyncRead + AsyncWrite + Unpin + Send + 'static>(io: IO, ends: Ends, counted: Counted) {
    let shared = Arc::clone(&counted.0);
    let progress = Arc::new(Progress::new(counted));
    let mut line = Line::new(io, Arc::clone(&progress));
    let connection =
        Arc::new(Connection { shared: Arc::clone(&shared), progress: Arc::clone(&progress), ends: Arc::new(ends) });
    let serving = http1::Builder::new()
        .header_read_timeout(None)
        .max_header_size(HEAD_BYTES)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(
            TokioIo::new(line.clone()),
            service_fn(move |request| exchange(Arc::clone(&connection), request)),
        )
        .with_upgrades();
    drive(serving, &line, &shared, &progress).await;
    drop(progress.handed_over()); // whoever holds on to one of its requests is not waited for
    if progress.lingers() {
        line.linger(shared.bounds.linger).await;
    }
}

/// Returns when `serving` ends, or has to.
async fn drive<IO: AsyncRead + AsyncWrite + Unpin>(
    serving: impl Future<Output = hyper::Result<()>>,
    line: &Line<IO>,
    shared: &Shared,
    progress: &Progress,
) {
    let mut serving = pin!(serving);
    let mut stage = shared.stage.subscribe();
    let mut timer = pin!(sleep_until(wake_at(progress, &shared.bounds, *stage.borrow_and_update()).into()));
    loop {
        tokio::select! {
            biased;
            // An error is the client's: it is gone, or has had its answer.
            _ = &mut serving => return,
            () = poll_fn(|context| line.poll_left(context)) => return,
            () = progress.cut.notified() => return,
            _ = stage.changed() => {}
            () = &mut timer => {}
        }
        let now = *stage.borrow_and_update();
        if now == Stage::Cut || progress.deadline(&shared.bounds, now).is_some_and(|at| at <= Instant::now()) {
            return;
        }
        timer.as_mut().reset(wake_at(progress, &shared.bounds, now).into());
    }
}

/// Returns once a client has taken nothing for too long, on a connection that goes on as something else than HTTP.
pub(super) async fn stuck(progress: &Progress, bounds: &Bounds) {
    while progress.deadline(bounds, Stage::Open).is_none_or(|at| at > Instant::now()) {
        sleep_until(wake_at(progress, bounds, Stage::Open).into()).await;
    }
}

/// When to look at the deadline next: it may have come to be while the connection went on.
fn wake_at(progress: &Progress, bounds: &Bounds, stage: Stage) -> Instant {
    let phase = if matches!(stage, Stage::Stopping(_)) { bounds.settle } else { bounds.head };
    let latest = Instant::now() + phase.min(bounds.send);
    progress.deadline(bounds, stage).map_or(latest, |at| at.min(latest))
}
