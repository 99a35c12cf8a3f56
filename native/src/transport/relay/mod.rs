//! Relays a worker's stream to a client until something comes that Python decides on.

mod chunk;
mod compact;
mod ending;
mod event;
mod event_counts;
mod filter;
mod model_name;
mod passing;
mod splitter;
mod token_count;
mod token_ids;
mod trail;
mod usage;
mod zero_counts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::{timeout, timeout_at};

pub use chunk::Beginning;
pub use filter::{Rules, SharedFilter, StreamFilter};
pub use model_name::with_model;
pub use passing::{Notes, Passes, Passing, Taken, begins};
pub use splitter::{Splitter, TooLarge};
pub use token_ids::without_ids;
pub use trail::{KeptBytes, Passed, RecordRoom, Unkept};
pub use usage::{Usage, usage_of};
pub use zero_counts::without_zeros;

use super::client::{Answer, Failure};
use super::reply_body::ReplySender;

/// Of bytes read after the end of a choice, more than these end the wait for the stream's end.
const MAX_END_BYTES: usize = 64 * 1024;

/// So long nothing may come of an answer that another worker can go on with. Then Python reads what comes next: it is
/// told what native code knows of the answer, without which nobody goes on with it.
const QUIET: Duration = Duration::from_secs(5);

/// When something came of a worker last.
#[derive(Clone)]
pub struct Heard {
    began: Instant,
    after: Arc<AtomicU64>,
}

impl Heard {
    /// Something has come now.
    #[must_use]
    pub fn now() -> Self {
        Self { began: Instant::now(), after: Arc::default() }
    }

    /// Something comes.
    pub fn note(&self) {
        let after = self.began.elapsed().as_millis();
        self.after.store(u64::try_from(after).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long nothing has come.
    #[must_use]
    pub fn ago(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.after.load(Ordering::Relaxed)))
    }
}

/// Has a relay stop once it has passed on what comes next, from any thread, so that Python decides what becomes of the
/// answer.
#[derive(Debug, Clone, Default)]
pub struct Pause(Arc<AtomicBool>);

impl Pause {
    /// Also for the next relay, where none runs.
    pub fn make(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was made, once.
    fn taken(&self) -> bool {
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed)
    }
}

/// Why a relay has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// There are events for Python.
    Handed,
    /// It was paused, or nothing has come for a while.
    Paused,
    /// The client's answer is whole, and was ended.
    Whole,
    /// The worker's answer has ended.
    Ended,
    /// It broke off.
    Failed(Failure),
    /// The client is gone, or takes nothing.
    ClientGone,
}

/// What a relay leaves.
pub struct Relayed {
    pub stop: Stop,
    /// The worker's answer, where there is more of it.
    pub answer: Option<Box<Answer>>,
    /// For Python.
    pub events: Vec<Vec<u8>>,
    /// The bytes after the last whole event; none after a failure.
    pub rest: Vec<u8>,
    pub notes: Notes,
}

/// One stream, from a worker to a client that has been sent the beginning of its answer.
pub struct Relay {
    pub answer: Box<Answer>,
    pub reply: ReplySender,
    pub passing: Passing,
    /// How long a client may take nothing.
    pub send: Duration,
    /// How long the end of the stream is waited for once it is near.
    pub end: Duration,
    pub heard: Heard,
    pub pause: Pause,
}

impl Relay {
    /// Relays until something stops it.
    pub async fn run(mut self: Box<Self>) -> Relayed {
        if self.passing.notes() {
            self.answer.wait_less(QUIET);
        }
        let (stop, mut events) = loop {
            match if self.passing.has_first() { self.take() } else { self.step().await } {
                Ok(events) if !events.is_empty() => break (Stop::Handed, events),
                Ok(_) if self.answer.ended() => break (Stop::Ended, Vec::new()),
                Ok(_) => (),
                Err(stop) => break (stop, Vec::new()),
            }
        };
        let ends = stop == Stop::Handed && self.passing.ends(&events);
        let stop = if ends { self.read_end(&mut events).await.map_or_else(Stop::Failed, |()| stop) } else { stop };
        let stop = if ends && stop == Stop::Handed { self.end(&mut events) } else { stop };
        self.answer.wait_as_any();
        let (rest, notes) = self.passing.into_rest();
        let rest = if matches!(stop, Stop::Handed | Stop::Paused | Stop::Ended) { rest } else { Vec::new() };
        let goes_on = matches!(stop, Stop::Handed | Stop::Paused) && !self.answer.ended();
        Relayed { stop, answer: goes_on.then_some(self.answer), events, rest, notes }
    }

    /// Ends the client's answer where the events make its ordinary end.
    fn end(&mut self, events: &mut Vec<Vec<u8>>) -> Stop {
        if !self.answer.ended() {
            return Stop::Handed;
        }
        let Some(passed) = self.passing.end(events) else { return Stop::Handed };
        events.clear();
        if self.reply.push(Bytes::from(passed)).is_err() {
            return Stop::ClientGone;
        }
        self.reply.end();
        Stop::Whole
    }

    /// Reads once; the events for Python.
    async fn step(&mut self) -> Result<Vec<Vec<u8>>, Stop> {
        match timeout(self.send, self.reply.room()).await {
            Ok(Ok(())) => (),
            Ok(Err(_)) | Err(_) => return Err(Stop::ClientGone),
        }
        if self.pause.taken() {
            return Err(Stop::Paused);
        }
        match self.answer.more(self.passing.bytes()).await {
            Err(Failure::Silent) if self.answer.wait_as_any() => return Err(Stop::Paused),
            read => read.map_err(Stop::Failed)?,
        }
        self.heard.note();
        self.take()
    }

    /// Passes on what is ordinary of what was read; the events for Python.
    fn take(&mut self) -> Result<Vec<Vec<u8>>, Stop> {
        let taken = self.passing.take().map_err(|TooLarge| Stop::Failed(Failure::Oversized))?;
        let Taken { passed, handed } = taken;
        if !passed.is_empty() {
            self.reply.push(Bytes::from(passed)).map_err(|_| Stop::ClientGone)?;
        }
        Ok(handed)
    }

    /// Reads to the end of the stream, or as far as that comes soon. An error, and what follows it, is left to be read
    /// for itself: what came before it stands.
    async fn read_end(&mut self, events: &mut Vec<Vec<u8>>) -> Result<(), Failure> {
        let (until, mut read) = (tokio::time::Instant::now() + self.end, 0);
        while !self.answer.ended() && read <= MAX_END_BYTES {
            let before = self.passing.bytes().len();
            match timeout_at(until, self.answer.more(self.passing.bytes())).await {
                Ok(more) => more?,
                Err(_) => break,
            }
            self.heard.note();
            read += self.passing.bytes().len() - before;
            let left = self.passing.hand(events).map_err(|TooLarge| Failure::Oversized)?;
            if !left.is_empty() {
                self.answer.unread(left);
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size<A, F>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// There are thousands of streams, and each is in this for as long as it lasts.
    #[test]
    fn a_relay_under_way_is_small() {
        assert!(size(Relay::run) <= 1024, "{} bytes", size(Relay::run));
    }
}
