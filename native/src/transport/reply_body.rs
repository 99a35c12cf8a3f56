//! Body of an answer to a client: whoever writes is told when too much waits, and when the client is gone.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

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
pub struct ReplySender {
    pieces: UnboundedSender<Bytes>,
    waiting: Arc<Waiting>,
}

/// The body that the server sends.
pub struct ReplyBody {
    pieces: UnboundedReceiver<Bytes>,
    waiting: Arc<Waiting>,
}

#[derive(Default)]
struct Waiting {
    bytes: AtomicUsize,
    less: Notify,
    whole: AtomicBool,
}

/// Makes a body and its writer.
#[must_use]
pub fn reply_body() -> (ReplySender, ReplyBody) {
    let (sender, receiver) = unbounded_channel();
    let waiting = Arc::new(Waiting::default());
    (ReplySender { pieces: sender, waiting: Arc::clone(&waiting) }, ReplyBody { pieces: receiver, waiting })
}

impl ReplySender {
    /// Adds a piece; whether there is room for more now.
    ///
    /// # Errors
    /// The client is gone.
    pub fn push(&self, piece: Bytes) -> Result<bool, Gone> {
        let waits = self.waiting.bytes.fetch_add(piece.len(), Ordering::AcqRel) + piece.len();
        self.pieces.send(piece).map_err(|_| Gone)?;
        Ok(waits < HIGH_WATER)
    }

    /// Says that the body is whole once all its writers are gone.
    pub fn end(&self) {
        self.waiting.whole.store(true, Ordering::Release);
    }

    /// Returns once less waits than `HIGH_WATER`.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn room(&self) -> Result<(), Gone> {
        loop {
            let less = self.waiting.less.notified();
            tokio::pin!(less);
            less.as_mut().enable();
            if self.pieces.is_closed() {
                return Err(Gone);
            }
            if self.waiting.bytes.load(Ordering::Acquire) < HIGH_WATER {
                return Ok(());
            }
            less.await;
        }
    }

    /// Whether the client is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.pieces.is_closed()
    }

    /// Returns once the client is gone.
    pub async fn gone(&self) {
        self.pieces.closed().await;
    }
}

impl Drop for ReplyBody {
    fn drop(&mut self) {
        self.pieces.close();
        self.waiting.less.notify_waiters();
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Abandoned;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Abandoned>>> {
        let piece = std::task::ready!(self.pieces.poll_recv(context));
        let Some(piece) = piece else {
            let whole = self.waiting.whole.load(Ordering::Acquire);
            return Poll::Ready(if whole { None } else { Some(Err(Abandoned)) });
        };
        let before = self.waiting.bytes.fetch_sub(piece.len(), Ordering::AcqRel);
        if before >= HIGH_WATER {
            self.waiting.less.notify_waiters();
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
