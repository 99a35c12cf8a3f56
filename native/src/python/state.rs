//! An index behind its lock.
//!
//! Who reads keeps the GIL and waits a moment where a writer without it is busy: giving the GIL up for a call of two
//! microseconds costs tens. A writer never asks for the GIL while it has the lock, and keeps the lock for one operation.

use super::errors::InternalError;
use crate::index::{Index, Limits, Seen, Walk};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// How often to look whether the lock is free before sleeping: some 20 microseconds.
const SPINS: u32 = 2000;

pub struct State {
    pub index: Index,
    pub walk: Walk,
    pub seen: Seen,
}

pub struct Locked {
    state: Mutex<State>,
    limits: Limits,
}

impl Locked {
    pub fn new(limits: Limits) -> Self {
        Self { state: Mutex::new(State::new(Index::new(limits))), limits }
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The answer of `act`. After a panic the index is empty, which agents' next digests find out and heal.
    pub fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> PyResult<T> {
        let mut state = self.lock();
        catch_unwind(AssertUnwindSafe(|| act(&mut state))).map_err(|_| {
            *state = State::new(Index::new(self.limits));
            InternalError::new_err("a defect; the index begins anew, empty")
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        for _ in 0..SPINS {
            match self.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(state)) => return state.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    pub fn new(index: Index) -> Self {
        Self { index, walk: Walk::default(), seen: Seen::default() }
    }
}
