//! Body of an answer to a client: whoever writes is told when too much waits, and when the client is gone.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

/// Bytes that may wait for a slow client before its writer has to.
pub const HIGH_WATER: usize = 64 * 1024;

/// The client is gone: nothing that is written reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

/// The writers of a body are gone, and none has said that it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abandoned;

impl fmt::Display for Abandoned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the answer was abandoned")
    }
}

impl std::error::Error for Abandoned {}

/// Writes a body; clones write the same one, which ends with the last of them, and breaks off unless one has `end`ed it.
#[derive(Clone)]
pub struct ReplySender(Arc<Writers>);

/// All writers of a body.
struct Writers(Arc<Shared>);

/// The body that the server sends.
pub struct ReplyBody(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pieces: Mutex<Pieces>,
    less: Notify,
}

/// A queue of its own size: a channel's is larger than most streams ever need.
#[derive(Default)]
struct Pieces {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    whole: bool,
    written: bool,
    client: Client,
    reader: Option<Waker>,
}

/// What becomes of what is written.
#[derive(Default, PartialEq, Eq)]
enum Client {
    /// It is sent.
    #[default]
    Takes,
    /// It is dropped: all that the client is to get has been taken.
    HasAll,
    /// The client is gone.
    Gone,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pieces {
    fn is_gone(&self) -> bool {
        self.client == Client::Gone
    }
}

/// Makes a body and its writer.
#[must_use]
pub fn reply_body() -> (ReplySender, ReplyBody) {
    let shared = Arc::new(Shared::default());
    (ReplySender(Arc::new(Writers(Arc::clone(&shared)))), ReplyBody(shared))
}

impl ReplySender {
    fn shared(&self) -> &Shared {
        &self.0.0
    }

    /// Adds a piece; whether there is room for more now.
    ///
    /// # Errors
    /// The client is gone.
    pub fn push(&self, piece: Bytes) -> Result<bool, Gone> {
        let mut pieces = self.shared().lock();
        match pieces.client {
            Client::Takes => (),
            Client::HasAll => return Ok(true),
            Client::Gone => return Err(Gone),
        }
        pieces.bytes += piece.len();
        pieces.waiting.push_back(piece);
        let (room, reader) = (pieces.bytes < HIGH_WATER, pieces.reader.take());
        drop(pieces);
        reader.inspect(Waker::wake_by_ref);
        Ok(room)
    }

    /// Says that the body is whole once all its writers are gone.
    pub fn end(&self) {
        self.shared().lock().whole = true;
    }

    /// Whether its client has been sent all that it is to get, whatever is still written.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.shared().lock().client == Client::HasAll
    }

    /// Returns once less waits than `HIGH_WATER`.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn room(&self) -> Result<(), Gone> {
        self.until(
            |pieces| if pieces.is_gone() { Some(Err(Gone)) } else { (pieces.bytes < HIGH_WATER).then_some(Ok(())) },
        )
        .await
    }

    /// Whether the client is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared().lock().is_gone()
    }

    /// Returns once the client is gone.
    pub async fn gone(&self) {
        self.until(|pieces| pieces.is_gone().then_some(())).await;
    }

    /// What is found once something is.
    async fn until<T>(&self, found: impl Fn(&Pieces) -> Option<T>) -> T {
        loop {
            let less = self.shared().less.notified();
            tokio::pin!(less);
            less.as_mut().enable();
            let now = found(&self.shared().lock());
            if let Some(found) = now {
                return found;
            }
            less.await;
        }
    }
}

impl ReplyBody {
    /// Nothing more is to be taken of it: it is as long as its head said. Its client is not gone, whatever becomes of it.
    pub fn fill(&self) {
        let unsent = {
            let mut pieces = self.0.lock();
            (pieces.client, pieces.bytes) = (Client::HasAll, 0);
            std::mem::take(&mut pieces.waiting)
        };
        drop(unsent);
        self.0.less.notify_waiters();
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let reader = {
            let mut pieces = self.0.lock();
            pieces.written = true;
            pieces.reader.take()
        };
        reader.inspect(Waker::wake_by_ref);
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        let unsent = {
            let mut pieces = self.0.lock();
            if pieces.client == Client::Takes {
                pieces.client = Client::Gone;
            }
            std::mem::take(&mut pieces.waiting)
        };
        drop(unsent);
        self.0.less.notify_waiters();
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Abandoned;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Abandoned>>> {
        let mut pieces = self.0.lock();
        let Some(piece) = pieces.waiting.pop_front() else {
            if pieces.written {
                return Poll::Ready(if pieces.whole { None } else { Some(Err(Abandoned)) });
            }
            pieces.waiting = VecDeque::new();
            pieces.reader = Some(context.waker().clone());
            return Poll::Pending;
        };
        let before = pieces.bytes;
        pieces.bytes -= piece.len();
        drop(pieces);
        if before >= HIGH_WATER {
            self.0.less.notify_waiters();
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;

    use super::{Abandoned, Gone, HIGH_WATER, reply_body};

    #[tokio::test]
    async fn says_when_too_much_waits_and_when_it_does_no_more() {
        let (sender, mut body) = reply_body();
        assert_eq!(sender.push(Bytes::from(vec![0; HIGH_WATER - 1])), Ok(true));
        assert_eq!(sender.push(Bytes::from_static(b"x")), Ok(false));
        let waiting = tokio::spawn({
            let sender = sender.clone();
            async move { sender.room().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        body.frame().await.unwrap().unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn a_full_one_takes_and_drops_what_is_written() {
        let (sender, mut body) = reply_body();
        sender.push(Bytes::from(vec![0; HIGH_WATER])).unwrap();
        sender.push(Bytes::from(vec![0; HIGH_WATER])).unwrap();
        body.frame().await.unwrap().unwrap();
        assert!(!sender.is_full());
        body.fill();
        drop(body);
        let told = (sender.is_full(), sender.is_gone(), sender.room().await, sender.push(Bytes::from_static(b"x")));
        assert_eq!(told, (true, false, Ok(()), Ok(true)));
    }

    #[tokio::test]
    async fn ends_with_the_last_writer_and_tells_that_the_client_is_gone() {
        let (sender, body) = reply_body();
        sender.push(Bytes::from_static(b"a")).unwrap();
        sender.end();
        drop(sender);
        assert_eq!(body.collect().await.unwrap().to_bytes(), "a");
        let (sender, body) = reply_body();
        drop(sender);
        assert_eq!(body.collect().await.unwrap_err(), Abandoned);
        let (sender, body) = reply_body();
        assert!(!sender.is_gone());
        drop(body);
        sender.gone().await;
        assert_eq!((sender.push(Bytes::new()), sender.room().await), (Err(Gone), Err(Gone)));
    }
}
