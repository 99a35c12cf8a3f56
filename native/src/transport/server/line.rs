//! The input and output of a connection: notes progress, and lingers where the connection ends.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::progress::Progress;

const DISCARDED: usize = 8 * 1024;
/// Reads of what is discarded before others get their turn.
const AT_ONCE: usize = 16;

/// A connection's bytes. Its shutdown says that nothing more comes, then discards input for as long as `linger`: a
/// client that is still sending would else be reset before it has read its answer.
pub struct Line<IO> {
    io: IO,
    progress: Arc<Progress>,
    linger: Duration,
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<IO> Line<IO> {
    pub fn new(io: IO, progress: Arc<Progress>, linger: Duration) -> Self {
        Self { io, progress, linger, lingering: None }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Line<IO> {
    fn noted<T>(&self, written: Poll<Result<T>>) -> Poll<Result<T>> {
        match written {
            Poll::Pending => self.progress.blocked(),
            Poll::Ready(_) => self.progress.written(),
        }
        written
    }

    fn discard(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut discarded = [0; DISCARDED];
        for _ in 0..AT_ONCE {
            let mut buffer = ReadBuf::new(&mut discarded);
            match ready!(Pin::new(&mut self.io).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Line<IO> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if read.is_ready() {
            self.progress.read(buffer.filled().len() - before);
        }
        read
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Line<IO> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, data);
        self.noted(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, data);
        self.noted(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.io).poll_shutdown(context))?;
            if !this.progress.ending() {
                return Poll::Ready(Ok(()));
            }
            this.lingering = Some(Box::pin(sleep(this.linger)));
        }
        if this.discard(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        this.lingering.as_mut().map_or(Poll::Ready(()), |timer| timer.as_mut().poll(context)).map(Ok)
    }
}
