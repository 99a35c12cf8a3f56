//! The input and output of a connection: notes progress, sees clients leave, and lingers where the connection ends.
//!
//! `Socket` is below TLS, where there is any, `Line` above it.

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice, Result};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{sleep, timeout};

use super::frames::Frames;
use super::heads::Heads;
use super::progress::Progress;

/// Bytes read ahead of a request that is being answered.
const AHEAD: usize = 16 * 1024;
const DISCARDED: usize = 8 * 1024;
/// Reads of what is discarded before a pause: others get their turn, and who sends for ever costs little.
const AT_ONCE: usize = 16;
const PAUSE: Duration = Duration::from_millis(2);

/// A socket; notes whether the client takes what is written.
pub struct Socket<IO> {
    io: IO,
    progress: Arc<Progress>,
}

/// A connection's bytes; clones are one connection's.
pub struct Line<IO>(Arc<Mutex<Inner<IO>>>);

struct Inner<IO> {
    io: IO,
    progress: Arc<Progress>,
    ahead: BytesMut,
    reading: bool,
    /// Of a connection of HTTP/2.
    frames: Option<Box<Frames>>,
    /// Of a connection of HTTP/1.
    heads: Option<Arc<Heads>>,
}

impl<IO> Clone for Line<IO> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<IO> Line<IO> {
    pub fn new(io: IO, progress: Arc<Progress>) -> Self {
        let (ahead, reading, frames, heads) = (BytesMut::new(), false, None, None);
        Self(Arc::new(Mutex::new(Inner { io, progress, ahead, reading, frames, heads })))
    }

    /// HTTP/1 is read from it: its heads are checked.
    pub fn check_heads(&self, heads: Arc<Heads>) {
        self.lock().heads = Some(heads);
    }

    /// HTTP/2 is read from it: a flood of frames that ask for nothing breaks it.
    pub fn count_frames(&self) {
        self.lock().frames = Some(Box::new(Frames::new(Instant::now())));
    }

    fn lock(&self) -> MutexGuard<'_, Inner<IO>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<IO> Inner<IO> {
    /// Counts the frames of what was read. An error where too many ask for nothing.
    fn counted(&mut self, read: &[u8]) -> Result<()> {
        let fine = self.frames.as_mut().is_none_or(|frames| frames.note(read, Instant::now()));
        if fine { Ok(()) } else { Err(ErrorKind::ConnectionAborted.into()) }
    }

    /// Reads from `ahead`, in which there is something.
    fn take_ahead(&mut self, buffer: &mut ReadBuf<'_>) {
        let offered = self.ahead.len().min(buffer.remaining());
        let size = match &self.heads {
            Some(heads) if offered > 0 => heads.check(&mut self.ahead[..offered]),
            _ => offered,
        };
        buffer.put_slice(&self.ahead[..size]);
        self.ahead.advance(size);
        if self.ahead.is_empty() {
            self.ahead = BytesMut::new();
        }
    }

    /// Puts what was read behind the end of a head or a body into `ahead`.
    fn hold_back(&mut self, buffer: &mut ReadBuf<'_>, before: usize) {
        let Some(heads) = self.heads.as_ref().filter(|_| buffer.filled().len() > before) else { return };
        let end = before + heads.check(&mut buffer.filled_mut()[before..]);
        self.ahead.extend_from_slice(&buffer.filled()[end..]);
        buffer.set_filled(end);
    }
}

impl<IO: AsyncRead + Unpin> Inner<IO> {
    /// Reads into `ahead`; how many bytes, 0 at the end.
    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        let mut read = [MaybeUninit::uninit(); DISCARDED];
        let mut buffer = ReadBuf::uninit(&mut read);
        let there = ready!(Pin::new(&mut self.io).poll_read(context, &mut buffer)).is_ok();
        self.ahead.extend_from_slice(buffer.filled());
        Poll::Ready(if there { buffer.filled().len() } else { 0 })
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Line<IO> {
    /// Returns once there is something to read, or the end.
    pub async fn first(&self) {
        poll_fn(|context| {
            let inner = &mut *self.lock();
            if inner.ahead.is_empty() { inner.poll_ahead(context).map(drop) } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Has `data` read before anything else, by somebody else than whoever read it.
    pub fn put_back(&self, data: &[u8]) {
        let inner = &mut *self.lock();
        inner.reading = false;
        if !data.is_empty() {
            inner.ahead = [data, &inner.ahead].concat().as_slice().into();
        }
    }

    /// Ready once the client has left while its request is being answered. Whoever reads the line notices that too, but
    /// nobody does where more requests have come than the one that is being answered.
    pub fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        let inner = &mut *self.lock();
        while !inner.reading && inner.ahead.len() < AHEAD && inner.progress.is_busy() {
            if ready!(inner.poll_ahead(context)) == 0 {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Discards what comes until the client has closed its end, or for so long: a client that is still sending would
    /// else be reset before it has read its answer.
    pub async fn linger(&mut self, long: Duration) {
        let discarding = async {
            while self.discard().await.is_ok() {
                sleep(PAUSE).await;
            }
        };
        drop(timeout(long, discarding).await);
    }

    async fn discard(&mut self) -> Result<()> {
        let mut discarded = [0; DISCARDED];
        for _ in 0..AT_ONCE {
            if self.read(&mut discarded).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl<IO> Socket<IO> {
    pub fn new(io: IO, progress: Arc<Progress>) -> Self {
        Self { io, progress }
    }

    fn noted<T>(&self, written: Poll<Result<T>>) -> Poll<Result<T>> {
        match written {
            Poll::Pending => self.progress.blocked(),
            Poll::Ready(_) => self.progress.written(),
        }
        written
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Socket<IO> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Socket<IO> {
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
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncRead for Line<IO> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let inner = &mut *self.lock();
        let before = buffer.filled().len();
        if !inner.ahead.is_empty() {
            inner.take_ahead(buffer);
            inner.progress.read(buffer.filled().len() - before);
            return Poll::Ready(inner.counted(&buffer.filled()[before..]));
        }
        let read = Pin::new(&mut inner.io).poll_read(context, buffer);
        inner.reading = read.is_pending();
        if read.is_pending() {
            return Poll::Pending;
        }
        inner.hold_back(buffer, before);
        inner.progress.read(buffer.filled().len() - before);
        read.map(|read| read.and_then(|()| inner.counted(&buffer.filled()[before..])))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Line<IO> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.lock().io).poll_write(context, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.lock().io).poll_write_vectored(context, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.lock().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.lock().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let inner = &mut *self.lock();
        ready!(Pin::new(&mut inner.io).poll_shutdown(context))?;
        inner.progress.shut();
        Poll::Ready(Ok(()))
    }
}
