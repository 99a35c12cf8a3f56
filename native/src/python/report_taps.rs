//! Delta frames applied on the transport's threads: Python is not asked about those that are the next of their stream.
//!
//! Python follows a stream (`report_streams`) until it is live, then hands it over by `resume`; from then on each Delta
//! with the next number is taken out of the connection and applied. All other frames, and all that follow one until
//! Python has dealt with it, go to Python, which takes the stream back by `pause` for as long as it does something with
//! it. So what is said on a connection is done in its order. A State alone does not hold up what follows: where it came
//! in its stream, and the digest there, is noted for Python, which is late where it has much to do.

use super::errors::guard;
use super::index::Index;
use super::plane::{Slot, WorkerRow};
use super::state::{Locked, State};
use crate::frame::{Frame, Kind};
use crate::index::{Operation, Removals, Seen};
use crate::reader::Key;
use crate::transport::server::{Tap, Taps};
use pyo3::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The last changes of one worker's blocks.
#[pyclass(frozen, module = "cachefleet_native")]
#[derive(Clone, Default)]
pub struct RemovalHistory(Arc<Mutex<Removals>>);

#[pymethods]
impl RemovalHistory {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// When its epoch began.
    #[getter]
    fn began(&self) -> f64 {
        lock(&self.0).began
    }

    fn begin(&self, now: f64) {
        lock(&self.0).begin(now);
    }

    fn note(&self, delta: &[u8], now: f64) {
        lock(&self.0).note(delta, now);
    }

    /// Whether any of these packed keys was removed at `since` or later, as far as frames are kept.
    #[pyo3(signature = (keys, *, since))]
    fn lost(&self, keys: &[u8], since: f64) -> PyResult<bool> {
        let keys: Vec<u64> = super::ints::packed_keys(keys, None)?.iter().map(Key::key).collect();
        guard(|| Ok(lock(&self.0).lost(&keys, since)))
    }
}

/// The taps of all connections of a server, by numbers that are in their handshakes.
#[pyclass(frozen, module = "cachefleet_native")]
#[derive(Clone)]
pub struct ReportTaps {
    index: Arc<Locked>,
    opened: Arc<Mutex<HashMap<u64, Weak<Connection>>>>,
    numbers: Arc<AtomicU64>,
}

#[pymethods]
impl ReportTaps {
    /// Frames are applied to this index.
    #[new]
    fn new(index: &Index) -> Self {
        Self { index: Arc::clone(&index.0), opened: Arc::default(), numbers: Arc::default() }
    }

    /// The tap of an open connection; None where there is none of this number.
    fn get(&self, number: u64) -> Option<ReportTap> {
        lock(&self.opened).get(&number).and_then(Weak::upgrade).map(ReportTap)
    }
}

impl ReportTaps {
    /// What a worker holds on its device and below with these operations; None where they cannot be applied.
    fn applied(&self, turn: &MutexGuard<'_, Seen>, worker: &str, operations: &[&Operation]) -> Option<(u64, u64)> {
        self.index.apply(turn, worker, operations, false, true).ok()?;
        let held = |state: &mut State| {
            let below = state.index.held_below(worker);
            (state.index.held(worker) - below, below)
        };
        self.index.with(held).ok()
    }
}

impl Taps for ReportTaps {
    fn open(&self) -> (u64, Arc<dyn Tap>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            number,
            taps: self.clone(),
            streams: Mutex::default(),
            order: Mutex::default(),
            taken: Mutex::default(),
        });
        lock(&self.opened).insert(number, Arc::downgrade(&connection));
        (number, connection)
    }
}

/// One connection's streams.
struct Connection {
    number: u64,
    taps: ReportTaps,
    streams: Mutex<HashMap<u64, Arc<Stream>>>,
    order: Mutex<Order>,
    /// Frames and bytes taken out since Python asked.
    taken: Mutex<(u64, u64)>,
}

/// What was passed on to Python.
#[derive(Default)]
struct Order {
    /// Messages that it has dealt with.
    processed: u64,
    /// States that it has yet to deal with: their numbers among the messages, and their places.
    states: VecDeque<(u64, Place)>,
}

impl Order {
    /// Whether nothing of so many messages is left to be dealt with but States with places.
    fn is_done(&self, passed: u64) -> bool {
        self.processed + self.states.len() as u64 == passed
    }

    /// The place of the State that is dealt with now.
    fn place(&self) -> Option<Place> {
        self.states.front().filter(|(number, _)| *number == self.processed).map(|(_, place)| *place)
    }

    fn advance(&mut self) {
        if self.place().is_some() {
            self.states.pop_front();
        }
        self.processed += 1;
    }
}

/// Where a State came in its stream: the number of the last Delta before it, and the digest of what was held.
type Place = (u64, u64);

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.taps.opened).remove(&self.number);
    }
}

impl Tap for Connection {
    fn takes(&self, message: &[u8], passed: u64) -> bool {
        if !lock(&self.order).is_done(passed) {
            return false; // what came before it has to be dealt with first
        }
        // Who has the turn may be applying a snapshot, and other connections of this thread must not wait for that.
        let Some(mut turn) = self.taps.index.writer_at_once() else { return false };
        let Ok(frame) = Frame::decode(message, &mut turn) else {
            self.note_state(message, passed);
            return false;
        };
        let Some(stream) = self.stream(frame.rank) else { return false };
        let operations: Vec<&Operation> = frame.operations.iter().collect();
        let apply = |worker: &str| self.taps.applied(&turn, worker, &operations);
        let is_taken = frame.kind == Kind::Delta && stream.take(frame.sequence, message, apply);
        if is_taken {
            let mut taken = lock(&self.taken);
            *taken = (taken.0 + 1, taken.1 + message.len() as u64);
        }
        is_taken
    }
}

impl Connection {
    fn stream(&self, rank: u64) -> Option<Arc<Stream>> {
        lock(&self.streams).get(&rank).cloned()
    }

    /// Notes the place of a message that is a State of a stream that is followed here.
    fn note_state(&self, message: &[u8], passed: u64) {
        let stream = Frame::state_rank(message).and_then(|rank| self.stream(rank));
        let digest = |worker: &str| self.taps.index.with(|state| state.index.digest(worker)).ok();
        if let Some(place) = stream.and_then(|stream| stream.place(digest)) {
            lock(&self.order).states.push_back((passed, place));
        }
    }
}

/// What is taken out of one agent's connection.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct ReportTap(Arc<Connection>);

#[pymethods]
impl ReportTap {
    /// The stream of a rank, which is paused; it takes the place of an earlier one.
    fn stream(&self, rank: u64, worker: String, row: &WorkerRow, history: &RemovalHistory) -> LiveStream {
        let stream = Stream { worker, row: Arc::clone(&row.0), history: history.clone(), at: Mutex::default() };
        let stream = Arc::new(stream);
        lock(&self.0.streams).insert(rank, Arc::clone(&stream));
        LiveStream(stream)
    }

    /// Of the message that is dealt with now, where it is a State of a stream that native code followed when it came:
    /// the number of the last Delta before it, and the digest of what was held.
    fn place(&self) -> Option<Place> {
        lock(&self.0.order).place()
    }

    /// Another message has been dealt with; how many Delta frames were taken out since the last call, and their bytes.
    fn processed(&self) -> (u64, u64) {
        lock(&self.0.order).advance();
        std::mem::take(&mut lock(&self.0.taken))
    }
}

struct Stream {
    worker: String,
    row: Arc<Slot>,
    history: RemovalHistory,
    at: Mutex<Option<Position>>,
}

/// Where a stream is that Python has handed over.
struct Position {
    sequence: u64,
    /// Blocks that its worker may claim on its device, and below.
    most: (u64, u64),
    /// It claims more: nothing else is taken.
    exceeded: bool,
    /// A time on Python's clock, and when that was.
    clock: (f64, Instant),
}

impl Position {
    fn awaits(&self, sequence: u64) -> bool {
        !self.exceeded && self.sequence.checked_add(1) == Some(sequence)
    }
}

impl Stream {
    /// Where it is now; None where Python follows it, or has to look at it.
    fn place(&self, digest: impl FnOnce(&str) -> Option<u64>) -> Option<Place> {
        let at = lock(&self.at);
        let position = at.as_ref().filter(|position| !position.exceeded)?;
        Some((position.sequence, digest(&self.worker)?))
    }

    /// Applies a Delta where it is the next; false where Python has to look at it. `apply` gives what is held then.
    fn take(&self, sequence: u64, message: &[u8], apply: impl FnOnce(&str) -> Option<(u64, u64)>) -> bool {
        let mut at = lock(&self.at);
        let Some(position) = at.as_mut().filter(|position| position.awaits(sequence)) else { return false };
        let Some((on_device, below)) = apply(&self.worker) else {
            return false; // Python finds out why
        };
        position.exceeded = on_device > position.most.0 || below > position.most.1;
        position.sequence = sequence;
        let (began, since) = position.clock;
        if !self.row.is_idle() {
            lock(&self.history.0).note(message, began + since.elapsed().as_secs_f64());
        }
        true
    }
}

/// One rank's stream, which is Python's or native code's to follow.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct LiveStream(Arc<Stream>);

#[pymethods]
impl LiveStream {
    /// Native code follows it from now on, from this number, until its worker claims more than so many blocks on its
    /// device and below; `now` is on the clock of its history.
    fn resume(&self, sequence: u64, most: (u64, u64), now: f64) {
        *lock(&self.0.at) = Some(Position { sequence, most, exceeded: false, clock: (now, Instant::now()) });
    }

    /// Whether native code follows it.
    #[getter]
    fn followed(&self) -> bool {
        lock(&self.0.at).is_some()
    }

    /// Python follows it from now on: the number of the last Delta applied; None where it does already.
    fn pause(&self) -> Option<u64> {
        lock(&self.0.at).take().map(|position| position.sequence)
    }
}
