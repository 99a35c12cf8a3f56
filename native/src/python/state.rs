//! An index behind its locks.
//!
//! Readers keep the GIL and wait where a writer without it has the lock: releasing the GIL for a call of two
//! microseconds costs tens. A writer of many operations releases the lock between slices of them, lets waiting threads
//! go first, and never acquires the GIL while it has a lock. Writers take turns for whole frames.

use super::errors::InternalError;
use crate::index::{Full, Index, Limits, Operation, Seen, Strips, Walk, slices};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long a thread spins for the lock before it sleeps: some slices, and as long as a wake-up takes. Longer is
/// useless, because the thread that has the lock then waits for a core, perhaps for this one.
const LOOKS: Duration = Duration::from_micros(25);
/// How long a writer lets waiting threads go first: it spins until `COURTESY`, because a thread that spins too takes
/// the lock at once, then yields its core until `PATIENCE`.
const COURTESY: Duration = Duration::from_micros(1);
const PATIENCE: Duration = Duration::from_micros(100);
/// Keys of one slice: one to four microseconds.
const SLICE: usize = 32;

pub struct State {
    pub index: Index,
    pub walk: Walk,
    pub strips: Strips,
}

pub struct Locked {
    state: Mutex<State>,
    writing: Mutex<Seen>,
    waiting: AtomicU32,
    limits: Limits,
    /// Calls refused at a bound, and keys in them.
    refused: [AtomicU64; 2],
}

impl Locked {
    pub fn new(limits: Limits) -> Self {
        Self {
            state: Mutex::new(State::new(Index::new(limits))),
            writing: Mutex::default(),
            waiting: AtomicU32::new(0),
            limits,
            refused: Default::default(),
        }
    }

    /// Calls refused at a bound since it was made, and the keys in them.
    pub fn refused(&self) -> (u64, u64) {
        let [calls, keys] = &self.refused;
        (calls.load(Ordering::Relaxed), keys.load(Ordering::Relaxed))
    }

    /// Counts a call with `keys` keys where it was refused at a bound; returns its outcome.
    pub fn counted<T>(&self, outcome: Result<T, Full>, keys: usize) -> Result<T, Full> {
        if outcome.is_err() {
            self.refused[0].fetch_add(1, Ordering::Relaxed);
            self.refused[1].fetch_add(keys as u64, Ordering::Relaxed);
        }
        outcome
    }

    /// Runs `act` under the lock. After a panic the index is empty, which the agents' next digests reveal and repair.
    pub fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> PyResult<T> {
        let mut state = self.lock();
        catch_unwind(AssertUnwindSafe(|| act(&mut state))).map_err(|_| {
            *state = State::new(Index::new(self.limits));
            InternalError::new_err("a defect; the index begins anew, empty")
        })
    }

    /// The same for changes, when no other writer is in the middle of a frame.
    pub fn write<T>(&self, act: impl FnOnce(&mut State, &mut Seen) -> T) -> PyResult<T> {
        let mut seen = self.writer();
        self.with(|state| act(state, &mut seen))
    }

    /// The writers' lock, with the state that checks operations.
    pub fn writer(&self) -> MutexGuard<'_, Seen> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same where nobody else has it.
    pub fn writer_at_once(&self) -> Option<MutexGuard<'_, Seen>> {
        match self.writing.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Applies valid operations of one worker, all or none; where `replaces`, they replace all that it holds. In slices
    /// where `shared`: other threads may be waiting, which they cannot while this one has the GIL.
    pub fn apply(
        &self,
        _turn: &MutexGuard<'_, Seen>,
        worker: &str,
        operations: &[&Operation],
        replaces: bool,
        shared: bool,
    ) -> PyResult<()> {
        let room = self.with(|state| state.index.room_for(worker, operations, replaces))?;
        self.counted(room, operations.iter().map(|operation| operation.keys().len()).sum())?;
        if replaces {
            self.with(|state| state.index.forget(worker))?;
        }
        if !shared {
            return Ok(self.with(|state| state.index.apply_all(worker, operations))??);
        }
        operations.iter().try_for_each(|operation| self.apply_in_slices(worker, operation))
    }

    fn apply_in_slices(&self, worker: &str, operation: &Operation) -> PyResult<()> {
        for slice in slices(operation, SLICE) {
            self.give_way();
            self.with(|state| state.index.apply_slice(worker, &slice))??;
        }
        Ok(())
    }

    fn give_way(&self) {
        let waits = || self.waiting.load(Ordering::Relaxed) > 0;
        if waits() {
            let start = Instant::now();
            while waits() && start.elapsed() < COURTESY {
                std::hint::spin_loop();
            }
            while waits() && start.elapsed() < PATIENCE {
                std::thread::yield_now();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.try_lock().unwrap_or_else(|| {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let state = self.wait();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            state
        })
    }

    fn wait(&self) -> MutexGuard<'_, State> {
        let start = Instant::now();
        while start.elapsed() < LOOKS {
            if let Some(state) = self.try_lock() {
                return state;
            }
            std::hint::spin_loop();
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl State {
    pub fn new(index: Index) -> Self {
        Self { index, walk: Walk::default(), strips: Strips::default() }
    }
}
