//! `FleetLoad`: requests to play through fleets of any size, in outline.

use super::errors::guard;
use super::ints;
use crate::outline::engine::Rates;
use crate::outline::fleet::{Fleet, play};
use crate::outline::load::{Answered, Load, Recording};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most workers, and most blocks of one.
const MOST_WORKERS: usize = 1024;
const MOST_WORKER_BLOCKS: usize = 1 << 24;
const MOST_BLOCK_TOKENS: u64 = 1 << 16;
/// Tokens of a prompt or an answer that are counted.
const MOST_TOKENS: u64 = 1 << 30;
/// An outline may last for so long.
const MOST_SECONDS: f64 = 600.0;

/// Requests of one call: as many as are read within a fraction of a millisecond, in which no other thread runs.
const MOST_AT_ONCE: usize = 256;

#[pyclass(module = "cachefleet_native", frozen)]
pub struct FleetLoad(Mutex<State>);

/// Requests are told until the first time that they are played.
enum State {
    Told(Recording),
    Played(Arc<Load>),
}

/// Seconds; tokens of prompt, answer and those served; packed keys of the prompt's full blocks, and of those of the answer
/// that are known.
type Told = (f64, u64, u64, u64, PyBackedBytes, PyBackedBytes);

/// Equal workers, as Python tells of them; see `Fleet`.
#[derive(FromPyObject)]
struct Size {
    workers: usize,
    blocks: usize,
    budget_blocks: Option<usize>,
    prefill_tokens_per_second: f64,
    inter_token_seconds: f64,
    batched_tokens: u64,
    running: usize,
}

#[pymethods]
impl FleetLoad {
    /// Without requests; blocks have so many tokens.
    #[new]
    fn new(block_size: u64) -> PyResult<Self> {
        within("block_size", block_size, 1, MOST_BLOCK_TOKENS)?;
        Ok(Self(Mutex::new(State::Told(Recording::new(block_size)))))
    }

    /// More requests, in any order: the seconds at which each came, tokens of its prompt, its answer, and those that came
    /// from cache, packed keys of its prompt's full blocks, and of those of its answer that are known. False once there is
    /// no room for one. Not after the first `play`.
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn add(&self, py: Python<'_>, requests: Vec<Told>) -> PyResult<bool> {
        within("requests", requests.len(), 0, MOST_AT_ONCE)?;
        if let Some(at) = requests.iter().map(|request| request.0).find(|at| !at.is_finite()) {
            return Err(PyValueError::new_err(format!("at must be a number of seconds, got {at}")));
        }
        py.detach(|| {
            let State::Told(recording) = &mut *self.state() else {
                return Err(PyValueError::new_err("requests are added before they are played for the first time"));
            };
            for request in &requests {
                let (keys, answer) = (ints::packed_keys(&request.4, None)?, ints::packed_keys(&request.5, None)?);
                let [prompt_tokens, outputs, served_tokens] =
                    [request.1, request.2, request.3].map(|tokens| tokens.min(MOST_TOKENS));
                let one = Answered { at: request.0, prompt_tokens, outputs, served_tokens, keys, answer };
                if guard(|| Ok(recording.add(&one)))?.is_err() {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// How many requests there are.
    fn __len__(&self) -> usize {
        match &*self.state() {
            State::Told(recording) => recording.len(),
            State::Played(load) => load.requests.len(),
        }
    }

    /// Tokens of the prompts from number `since` on, by arrival, that such a fleet serves, those of them that come from
    /// cache, and requests too large for any worker; None where that takes more than so many seconds. Other threads run
    /// meanwhile.
    #[pyo3(signature = (size, *, since=0, free_percent=5, eviction=1.0, seconds))]
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn play(
        &self,
        py: Python<'_>,
        size: Size,
        since: usize,
        free_percent: usize,
        eviction: f64,
        seconds: f64,
    ) -> PyResult<Option<(u64, u64, usize)>> {
        let fleet = size.fleet(free_percent, eviction)?;
        within("seconds", seconds, 0.0, MOST_SECONDS)?;
        let played = py.detach(|| {
            let until = Instant::now() + Duration::from_secs_f64(seconds);
            guard(|| Ok(play(&self.load(), &fleet, since, until)))
        })?;
        Ok(played.map(|outcome| (outcome.prompt_tokens, outcome.hit_tokens, outcome.too_large)))
    }
}

impl FleetLoad {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self) -> Arc<Load> {
        let mut state = self.state();
        if let State::Told(recording) = &mut *state {
            let told = std::mem::replace(recording, Recording::new(1));
            *state = State::Played(Arc::new(told.load()));
        }
        match &*state {
            State::Played(load) => Arc::clone(load),
            State::Told(_) => unreachable!("it was replaced"),
        }
    }
}

impl Size {
    fn fleet(&self, free_percent: usize, eviction: f64) -> PyResult<Fleet> {
        within("workers", self.workers, 1, MOST_WORKERS)?;
        within("blocks", self.blocks, 1, MOST_WORKER_BLOCKS)?;
        within("prefill_tokens_per_second", self.prefill_tokens_per_second, 1e-3, 1e12)?;
        within("inter_token_seconds", self.inter_token_seconds, 0.0, 3600.0)?;
        within("batched_tokens", self.batched_tokens, 1, MOST_TOKENS)?;
        within("running", self.running, 1, 1 << 20)?;
        within("free_percent", free_percent, 0, 100)?;
        within("eviction", eviction, 0.0, 1.0)?;
        Ok(Fleet {
            workers: self.workers,
            blocks: self.blocks,
            budget: self.budget_blocks.unwrap_or(self.blocks),
            rates: Rates {
                tokens_per_second: self.prefill_tokens_per_second,
                inter_token_seconds: self.inter_token_seconds,
                batched_tokens: self.batched_tokens,
                running: self.running,
            },
            free_percent,
            eviction,
        })
    }
}

fn within<N: Copy + PartialOrd + std::fmt::Display>(name: &str, value: N, least: N, most: N) -> PyResult<()> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{name} must be from {least} to {most}, got {value}")))
}
