//! Messages of gRPC as they are put together: what they take is counted over all streams, and bounded.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tonic::Status;

/// A message has a flag and its length before it.
const PREFIX: usize = 5;
/// Messages of so many bytes, as heads are, have an eighth of the room for themselves.
const SMALL: usize = 64 * 1024;

/// Bytes that the messages of all streams may take while they are put together, and until they were told of.
pub struct Room {
    bytes: usize,
    taken: AtomicUsize,
}

impl Room {
    #[must_use]
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes, taken: AtomicUsize::new(0) })
    }

    /// Whether there is room for so many bytes more, which are then taken.
    fn take(&self, bytes: usize) -> bool {
        let most = if bytes <= SMALL { self.bytes } else { self.bytes - self.bytes / 8 };
        let more = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// What one stream's last message takes.
pub struct Held {
    room: Arc<Room>,
    bytes: AtomicUsize,
}

impl Held {
    #[must_use]
    pub fn new(room: &Arc<Room>) -> Arc<Self> {
        Arc::new(Self { room: Arc::clone(room), bytes: AtomicUsize::new(0) })
    }

    /// The message was told of.
    pub fn release(&self) {
        self.room.taken.fetch_sub(self.bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Another message begins; false where there is no room for it.
    fn begin(&self, bytes: usize) -> bool {
        self.release();
        let taken = self.room.take(bytes);
        if taken {
            self.bytes.store(bytes, Ordering::Relaxed);
        }
        taken
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

/// The messages of one stream as they come.
pub struct Messages {
    body: Incoming,
    held: Arc<Held>,
    /// A longer one is not read at all.
    most: usize,
    sizes: Sizes,
}

impl Messages {
    #[must_use]
    pub fn new(body: Incoming, held: Arc<Held>, most: usize) -> Self {
        Self { body, held, most, sizes: Sizes::default() }
    }
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Body for Messages {
    type Data = Bytes;
    type Error = Failed;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failed>>> {
        let this = &mut *self;
        let polled = std::task::ready!(Pin::new(&mut this.body).poll_frame(context));
        if let Some(Ok(frame)) = &polled
            && let Some(data) = frame.data_ref()
            && !this.sizes.all(data, |size| size > this.most || this.held.begin(size))
        {
            return Poll::Ready(Some(Err(Box::new(Status::resource_exhausted("no room for the message")))));
        }
        Poll::Ready(polled.map(|frame| frame.map_err(Failed::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Finds the sizes of messages in what comes of them.
#[derive(Default)]
struct Sizes {
    prefix: [u8; PREFIX],
    /// Bytes of a prefix that have come.
    begun: usize,
    /// Bytes that are to come of a message.
    left: usize,
}

impl Sizes {
    /// Whether `each` is true of the sizes of all messages that begin in `data`.
    fn all(&mut self, mut data: &[u8], each: impl Fn(usize) -> bool) -> bool {
        while !data.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(data.len());
                self.left -= skipped;
                data = &data[skipped..];
                continue;
            }
            let taken = (PREFIX - self.begun).min(data.len());
            self.prefix[self.begun..self.begun + taken].copy_from_slice(&data[..taken]);
            self.begun += taken;
            data = &data[taken..];
            if self.begun == PREFIX {
                let [_, a, b, c, d] = self.prefix;
                (self.begun, self.left) = (0, u32::from_be_bytes([a, b, c, d]) as usize);
                if !each(self.left) {
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::atomic::Ordering;

    use super::{Held, Room, SMALL, Sizes};

    fn message(size: u32) -> Vec<u8> {
        let mut message = vec![0];
        message.extend_from_slice(&size.to_be_bytes());
        message.resize(message.len() + size as usize, 7);
        message
    }

    #[test]
    fn finds_sizes_wherever_messages_are_cut() {
        let all = [message(3), message(0), message(300), message(9)].concat();
        for size in 1..all.len() {
            let (found, mut sizes) = (RefCell::new(Vec::new()), Sizes::default());
            for piece in all.chunks(size) {
                assert!(sizes.all(piece, |size| {
                    found.borrow_mut().push(size);
                    true
                }));
            }
            assert_eq!(*found.borrow(), [3, 0, 300, 9]);
        }
    }

    #[test]
    fn room_is_given_back_and_long_messages_leave_some_to_short_ones() {
        let room = Room::new(16 * SMALL);
        let (one, other, short) = (Held::new(&room), Held::new(&room), Held::new(&room));
        assert!(one.begin(10 * SMALL));
        assert!(!other.begin(5 * SMALL) && short.begin(SMALL));
        assert!(one.begin(4 * SMALL) && other.begin(5 * SMALL));
        other.release();
        drop((one, short));
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }
}
