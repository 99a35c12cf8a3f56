//! Requests of HTTP/2, each a stream beside others on its connection: one that stalls ends alone.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::sync::Notify;
use tokio::time::timeout_at;

/// Bytes handed on at once: what a client that reads nothing has waiting here beyond what its windows take.
const PIECE: usize = 16 * 1024;
/// A stall is noticed this part of its bound late.
const LATE: u32 = 4;

tokio::task_local! {
    static PACE: Arc<Pace>;
}

/// Whether the client takes the answer on one stream.
#[derive(Default)]
pub struct Pace {
    /// Since when a piece of the answer waits to be taken.
    waiting: Mutex<Option<Instant>>,
    cut: Notify,
}

impl Pace {
    /// That of the stream whose task this is.
    pub fn own() -> Arc<Self> {
        PACE.with(Arc::clone)
    }

    /// Ends the stream at once.
    pub fn cut(&self) {
        self.cut.notify_one();
    }

    /// Returns once the stream is to end.
    pub async fn was_cut(&self) {
        self.cut.notified().await;
    }

    fn wait(&self, since: Option<Instant>) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn until(&self, bound: Duration) -> Option<Instant> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).map(|since| since + bound)
    }

    /// Returns once a piece has waited for `bound`, or the stream is cut.
    async fn over(&self, bound: Duration) {
        loop {
            let (now, until) = (Instant::now(), self.until(bound));
            if until.is_some_and(|until| until <= now) {
                return;
            }
            let latest = now + bound / LATE;
            let look = until.map_or(latest, |until| until.min(latest));
            if timeout_at(look.into(), self.cut.notified()).await.is_ok() {
                return;
            }
        }
    }
}

/// Runs streams, each until it ends or its client has taken nothing of it for so long.
#[derive(Clone)]
pub struct Streams(pub Duration);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let (bound, pace) = (self.0, Arc::<Pace>::default());
        tokio::spawn(async move {
            let stream = PACE.scope(Arc::clone(&pace), stream);
            tokio::select! {
                biased;
                () = stream => {}
                () = pace.over(bound) => {}
            }
        });
    }
}

/// The body of an answer on a stream, in small pieces.
pub struct StreamBody<B> {
    body: B,
    rest: Bytes,
    pace: Arc<Pace>,
}

impl<B> StreamBody<B> {
    pub fn new(body: B, pace: Arc<Pace>) -> Self {
        Self { body, rest: Bytes::new(), pace }
    }

    fn piece(&mut self) -> Frame<Bytes> {
        self.pace.wait(Some(Instant::now()));
        let size = self.rest.len().min(PIECE);
        Frame::data(self.rest.split_to(size))
    }
}

type Polled<E> = Poll<Option<Result<Frame<Bytes>, E>>>;

impl<B: Body<Data = Bytes> + Unpin> Body for StreamBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled<B::Error> {
        self.pace.wait(None);
        if self.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        Poll::Ready(Some(Ok(self.piece())))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
