//! A connection to a worker: sends what is to be sent while it reads.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use super::Failure;
use super::stream::{Stream, Verified};

/// A connection on which nothing comes is probed after so long, so that one to a host that is gone breaks.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Probes without a reply after which it is lost.
const PROBES: u32 = 3;

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY).with_retries(PROBES)
}

/// Bytes read at once.
const READ_BYTES: usize = 64 * 1024;

thread_local! {
    /// One for all connections of a thread, so that those that wait hold no buffer.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

pub struct Connection {
    stream: Stream,
    unsent: [Bytes; 2],
    broken: bool,
    /// Bytes read since others had their turn.
    turn: usize,
}

impl Connection {
    /// Connects to the first address of `address` that takes it; the handshake counts to the time of connecting.
    pub async fn open(address: &str, verified: Option<&Verified>, bound: Duration) -> Result<Self, Failure> {
        let found = timeout(bound, lookup_host(address)).await.map_err(|_| Failure::Unreachable)?;
        let mut failure = Failure::Unreachable;
        for address in found.map_err(|_| Failure::Unreachable)? {
            failure = match timeout(bound, Self::connect(address, verified)).await {
                Ok(Err(failure @ (Failure::Unreachable | Failure::ConnectionRefused))) => failure,
                Err(_) => Failure::Unreachable,
                Ok(connected) => return connected,
            }
        }
        Err(failure)
    }

    async fn connect(address: SocketAddr, verified: Option<&Verified>) -> Result<Self, Failure> {
        let socket = TcpStream::connect(address).await.map_err(|error| match error.kind() {
            ErrorKind::ConnectionRefused => Failure::ConnectionRefused,
            _ => Failure::Unreachable,
        })?;
        let _ = socket.set_nodelay(true); // slower without, no more
        let _ = SockRef::from(&socket).set_tcp_keepalive(&keepalive());
        Ok(Self::of(Stream::begin(socket, verified).await?))
    }

    /// One that waited for a request; None where something came of it meanwhile: its end, or an answer to nothing.
    pub fn waited(mut stream: Stream) -> Option<Self> {
        let nothing = stream.try_read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        nothing.then(|| Self::of(stream))
    }

    fn of(stream: Stream) -> Self {
        Self { stream, unsent: Default::default(), broken: false, turn: 0 }
    }

    /// Has `head` and `body` sent while it is read.
    pub fn send(&mut self, head: Bytes, body: Bytes) {
        self.unsent = [head, body];
    }

    /// Has more sent after what is being sent.
    pub fn send_more(&mut self, more: Bytes) {
        let [head, body] = std::mem::take(&mut self.unsent);
        let before = if head.is_empty() { body } else { Bytes::from([head, body].concat()) };
        self.unsent = [before, more];
    }

    /// What may wait for another request.
    pub fn into_waiting(self) -> Option<Stream> {
        (!self.broken && self.is_sent()).then_some(self.stream)
    }

    fn is_sent(&self) -> bool {
        self.unsent.iter().all(Bytes::is_empty) && self.stream.is_sent()
    }

    /// Adds to `into` what has come; how many bytes, 0 at the end. Nothing may come or be sent for `idle` at most.
    pub async fn read(&mut self, into: &mut Vec<u8>, idle: Duration) -> Result<usize, Failure> {
        let read = loop {
            self.write();
            if self.is_sent()
                && let Stream::Plain(socket) = &mut self.stream
            {
                // It knows from a short read that no more has come, and need not look.
                let reading = poll_fn(|context| poll_read(socket, into, context));
                break timeout(idle, reading).await.map_err(|_| Failure::Silent)?;
            }
            match self.read_now(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.turn = 0;
                    self.ready(idle).await?;
                }
                read => break read,
            }
        };
        let read = read.map_err(|_| Failure::Lost)?;
        self.turn += read;
        if self.turn >= READ_BYTES {
            self.turn = 0;
            tokio::task::yield_now().await; // the turn of others, however much comes
        }
        Ok(read)
    }

    fn read_now(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        SCRATCH.with_borrow_mut(|scratch| {
            let read = self.stream.try_read(scratch)?;
            into.extend_from_slice(&scratch[..read]);
            Ok(read)
        })
    }

    async fn ready(&self, idle: Duration) -> Result<(), Failure> {
        let interest = if self.is_sent() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
        match timeout(idle, self.stream.socket().ready(interest)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Failure::Lost),
            Err(_) => Err(Failure::Silent),
        }
    }

    /// Sends what can be sent now. A worker that reads no more may have answered: that is read all the same.
    fn write(&mut self) {
        while self.unsent.iter().any(Bytes::has_remaining) {
            let [head, body] = &mut self.unsent;
            match self.stream.try_write(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(written) => {
                    let of_head = written.min(head.len());
                    head.advance(of_head);
                    body.advance(written - of_head);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.give_up(),
            }
        }
        self.unsent = Default::default(); // what was sent is not held on to
        if self.stream.flush().is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.broken = true;
        self.unsent = Default::default();
    }
}

fn poll_read(socket: &mut TcpStream, into: &mut Vec<u8>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut buffer = ReadBuf::new(scratch);
        ready!(Pin::new(socket).poll_read(context, &mut buffer))?;
        into.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    })
}
