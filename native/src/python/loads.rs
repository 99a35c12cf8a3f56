//! `Loads`: the candidates' loads, kept between decisions.

use crate::score::{Load, WHOLE};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One row for each candidate; a row not set yet is that of an idle worker with a stale report.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Loads(Mutex<Vec<Load>>);

const IDLE: Load = Load {
    stale: true,
    queued_tokens: 0,
    inflight_tokens: 0,
    tokens_per_second: 1.0,
    inter_token_seconds: 0.0,
    batched_tokens: 1,
    blocks_free: None,
    blocks_blank: None,
    requests: 0,
    last_used: 0,
    trust: WHOLE,
    eviction: 1.0,
    delayed: 0.0,
    standing: 0.0,
    loaded_per_second: 1.0,
    adapter_seconds: 0.0,
};
/// Bound on token counts, so that no sum overflows.
const MOST: u64 = 1 << 48;

#[pymethods]
impl Loads {
    #[new]
    fn new(candidates: usize) -> PyResult<Self> {
        if candidates > 1 << 20 {
            return Err(PyValueError::new_err("candidates: too many"));
        }
        Ok(Self(Mutex::new(vec![IDLE; candidates])))
    }

    /// Sets a candidate's row; rates are resolved, as by `routing/throughput.py`.
    #[pyo3(signature = (candidate, *, tokens_per_second, inter_token_seconds, batched_tokens, stale = false,
        queued_tokens = 0, inflight_tokens = 0, blocks_free = None, blocks_blank = None, requests = 0, last_used = 0, trust = WHOLE,
        eviction = 1.0, delayed = 0.0, standing = 0.0, loaded_per_second = 1.0, adapter_seconds = 0.0))]
    #[expect(clippy::too_many_arguments, reason = "by keyword, as a row is")]
    fn set(
        &self,
        candidate: usize,
        tokens_per_second: f64,
        inter_token_seconds: f64,
        batched_tokens: u64,
        stale: bool,
        queued_tokens: u64,
        inflight_tokens: u64,
        blocks_free: Option<u64>,
        blocks_blank: Option<u64>,
        requests: u64,
        last_used: u64,
        trust: u32,
        eviction: f64,
        delayed: f64,
        standing: f64,
        loaded_per_second: f64,
        adapter_seconds: f64,
    ) -> PyResult<()> {
        let rates = [tokens_per_second, loaded_per_second];
        let sound = rates.iter().all(|rate| *rate > 0.0 && rate.is_finite()) && inter_token_seconds >= 0.0;
        if !sound || !inter_token_seconds.is_finite() || batched_tokens == 0 {
            return Err(PyValueError::new_err("rates: must be finite and above 0"));
        }
        if trust > WHOLE {
            return Err(PyValueError::new_err("trust: must be at most 1000"));
        }
        if [eviction, delayed, standing].iter().any(|worth| !(0.0..f64::INFINITY).contains(worth)) {
            return Err(PyValueError::new_err("eviction, delayed, standing: must be finite and at least 0"));
        }
        if !(0.0..f64::INFINITY).contains(&adapter_seconds) {
            return Err(PyValueError::new_err("adapter_seconds: must be finite and at least 0"));
        }
        if queued_tokens > MOST || inflight_tokens > MOST {
            return Err(too_many());
        }
        *Self::row(&mut self.rows(), candidate)? = Load {
            stale,
            queued_tokens,
            inflight_tokens,
            tokens_per_second,
            inter_token_seconds,
            batched_tokens,
            blocks_free,
            blocks_blank,
            requests,
            last_used,
            trust,
            eviction,
            delayed,
            standing,
            loaded_per_second,
            adapter_seconds,
        };
        Ok(())
    }

    /// Sets what requests in flight change of a candidate's row, and nothing else.
    #[pyo3(signature = (candidate, *, inflight_tokens, blocks_free, blocks_blank, requests, last_used))]
    fn set_in_flight(
        &self,
        candidate: usize,
        inflight_tokens: u64,
        blocks_free: Option<u64>,
        blocks_blank: Option<u64>,
        requests: u64,
        last_used: u64,
    ) -> PyResult<()> {
        if inflight_tokens > MOST {
            return Err(too_many());
        }
        let mut rows = self.rows();
        let row = Self::row(&mut rows, candidate)?;
        *row = Load { inflight_tokens, blocks_free, blocks_blank, requests, last_used, ..*row };
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.rows().len()
    }
}

fn too_many() -> PyErr {
    PyValueError::new_err("tokens: too many")
}

impl Loads {
    fn row(rows: &mut [Load], candidate: usize) -> PyResult<&mut Load> {
        rows.get_mut(candidate).ok_or_else(|| PyIndexError::new_err("candidate: no such row"))
    }

    pub fn rows(&self) -> MutexGuard<'_, Vec<Load>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
