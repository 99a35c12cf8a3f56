//! Frames of live streams, taken out of their connections: Deltas are applied on the transport's threads, and Python is
//! given the States of all connections at once.
//!
//! Python follows a stream (`report_streams`) until it is live, then hands it over by `resume`; from then on each Delta
//! with the next number is taken out of the connection and applied. A State is kept for Python, with where it came in
//! its stream and the digest there, since Python may be late and what follows is not held up; the next State of its rank
//! takes its place. All other frames, and all that follow one until Python has dealt with it, go to Python, which deals
//! with States that are kept first, and takes the stream back by `pause` for as long as it does something with it. So
//! what is said on a connection is done in its order.

use super::errors::guard;
use super::index::Index;
use super::plane::{Slot, WorkerRow};
use super::state::{Locked, State};
use crate::frame::{Frame, Kind};
use crate::index::{Operation, Removals, Seen};
use crate::reader::Key;
use crate::transport::completions::Completions;
use crate::transport::server::{Tap, Taps};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

/// Bytes of a State that is kept; larger ones are Python's to refuse or to read.
const MOST_OF_A_STATE: usize = 1 << 16;

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
    /// Connections that keep States, each once until Python has taken them.
    waiting: Arc<Completions<u64>>,
}

#[pymethods]
impl ReportTaps {
    /// Frames are applied to this index.
    #[new]
    fn new(index: &Index) -> io::Result<Self> {
        let waiting = Arc::new(Completions::new()?);
        Ok(Self { index: Arc::clone(&index.0), opened: Arc::default(), numbers: Arc::default(), waiting })
    }

    /// Readable while any connection keeps States.
    fn fileno(&self) -> RawFd {
        self.waiting.descriptor()
    }

    /// Numbers of the connections that have begun to keep States since the last call.
    fn waiting(&self) -> Vec<u64> {
        self.waiting.take()
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
            processed: AtomicU64::default(),
            states: Mutex::default(),
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
    /// Messages passed on to Python that it has dealt with.
    processed: AtomicU64,
    states: Mutex<Vec<KeptState>>,
    /// Frames and bytes of Deltas taken out since Python asked.
    taken: Mutex<(u64, u64)>,
}

/// A State that Python has not asked for yet; one of each rank at most.
struct KeptState {
    rank: u64,
    frame: Vec<u8>,
    place: Place,
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
        if self.processed.load(Ordering::Acquire) != passed {
            return false; // what came before it has to be dealt with first
        }
        // Who has the turn may be applying a snapshot, and other connections of this thread must not wait for that.
        let Some(mut turn) = self.taps.index.writer_at_once() else { return false };
        let Ok(frame) = Frame::decode(message, &mut turn) else { return self.keeps(message) };
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

    /// Keeps a message that is a State of a stream that is followed here; false where it is none.
    fn keeps(&self, message: &[u8]) -> bool {
        let Some(rank) = Frame::state_rank(message).filter(|_| message.len() <= MOST_OF_A_STATE) else { return false };
        let digest = |worker: &str| self.taps.index.with(|state| state.index.digest(worker)).ok();
        let Some(place) = self.stream(rank).and_then(|stream| stream.place(digest)) else { return false };
        self.keep(KeptState { rank, frame: message.to_vec(), place });
        true
    }

    fn keep(&self, state: KeptState) {
        let mut states = lock(&self.states);
        let is_first = states.is_empty();
        states.retain(|other| other.rank != state.rank);
        states.push(state);
        drop(states);
        if is_first {
            self.taps.waiting.push(self.number);
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

    /// Takes the States that are kept: each with the number of the last Delta before it, and the digest of what was
    /// held there.
    fn states<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, Place)> {
        let states = std::mem::take(&mut *lock(&self.0.states));
        states.into_iter().map(|state| (PyBytes::new(py, &state.frame), state.place)).collect()
    }

    /// Another message that was passed on has been dealt with.
    fn processed(&self) {
        self.0.processed.fetch_add(1, Ordering::Release);
    }

    /// How many Delta frames were taken out since the last call, and their bytes.
    fn taken(&self) -> (u64, u64) {
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
        if !self.row.changed() {
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
