//! `Plane`, the rows of its workers, and requests in flight to them.

use super::errors::guard;
use super::ints;
use crate::plane::flights::{Flights, Sent};
use crate::plane::sharing::{Load, Told};
use crate::plane::workers::{Adapters, Report, Standing, Stream};
use crate::plane::{self, workers::Row};
use crate::reader::Key;
use crate::score::Worth;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The workers of all fleets as decisions see them.
#[pyclass(frozen, module = "cachefleet_native")]
#[derive(Clone, Default)]
pub struct Plane(Arc<Mutex<plane::Plane>>);

/// A worker's slot, given back when nobody refers to it.
pub struct Slot {
    plane: Plane,
    pub number: u32,
}

impl Slot {
    /// Changes of its blocks were applied; whether it has no requests in flight.
    pub fn changed(&self) -> bool {
        self.plane.lock().changed(self.number)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.plane.lock().leave(self.number);
    }
}

impl Plane {
    pub fn lock(&self) -> MutexGuard<'_, plane::Plane> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[pymethods]
impl Plane {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// A row for another worker.
    fn row(&self) -> WorkerRow {
        let number = self.lock().join();
        WorkerRow(Arc::new(Slot { plane: self.clone(), number }))
    }

    /// What other replicas are to be told of the requests on workers, by their slots, and whether there may soon be more.
    fn tell<'py>(&self, py: Python<'py>, now: f64) -> PyResult<(Vec<(u32, Telling<'py>)>, bool)> {
        let (loads, more) = guard(|| Ok(self.lock().tell(now)))?;
        let loads = loads.into_iter().map(|(slot, load)| Ok((slot, telling(py, load)?))).collect::<PyResult<_>>()?;
        Ok((loads, more))
    }
}

type ToldFlight<'py> = (u64, f64, bool, u64, u64, u64, u64, u64, u64, Bound<'py, PyBytes>);
/// Whether it is whole, requests, those that ended, and those that failed.
type Telling<'py> = (bool, Vec<ToldFlight<'py>>, Vec<u64>, Vec<u64>);

fn telling(py: Python<'_>, load: Load) -> PyResult<Telling<'_>> {
    let flight = |one: &Told| {
        let keys = ints::packed(py, &one.keys)?;
        let Told { number, age, computing, tokens, sequences, blocks, taken, skip, common, .. } = *one;
        Ok((number, age, computing, tokens, sequences, blocks, taken, skip, common, keys))
    };
    Ok((load.whole, load.flights.iter().map(flight).collect::<PyResult<_>>()?, load.ended, load.failed))
}

/// One rank of one worker as decisions see it.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct WorkerRow(pub Arc<Slot>);

impl WorkerRow {
    pub fn plane(&self) -> &Plane {
        &self.0.plane
    }

    fn read<T>(&self, of: impl FnOnce(&Row) -> T) -> T {
        of(self.0.plane.lock().look(self.0.number))
    }

    pub fn write<T>(&self, change: impl FnOnce(&mut Row) -> T) -> PyResult<T> {
        guard(|| Ok(change(self.0.plane.lock().row(self.0.number))))
    }
}

#[pymethods]
impl WorkerRow {
    /// Sets what is settled of it when a table is made of its fleet.
    fn stand(&self, ready: bool, differs: bool, batched_tokens: u64, free_percent: u64) -> PyResult<()> {
        self.write(|row| row.standing = Standing { ready, differs, batched_tokens, free_percent })
    }

    /// Sets the state of its stream of reports.
    fn follow(&self, reported: bool, heard_at: f64, out_of_step_at: Option<f64>) -> PyResult<()> {
        self.write(|row| row.stream = Stream { reported, heard_at, out_of_step_at })
    }

    /// Takes a State over; its waiting work beyond our own requests in flight is counted as that of others.
    fn reported(&self, state: Report, suspended: bool, leaving: bool, now: f64) -> PyResult<()> {
        self.write(|row| row.reported(state, suspended, leaving, now))
    }

    /// Changes of its blocks were applied.
    fn changed(&self) {
        self.0.changed();
    }

    /// Begins a new epoch: what was reported and sent before is gone.
    fn restarted(&self) -> PyResult<()> {
        self.write(Row::restarted)
    }

    /// Sets whether its blocks are left out of the index.
    fn leave_out(&self) -> PyResult<()> {
        self.write(|row| row.unindexed = true)
    }

    /// Sets the adapters that it serves, where it tells, and those displaced from its device.
    fn set_adapters(&self, served: Option<Vec<String>>, displaced: Vec<String>) {
        let mut plane = self.0.plane.lock();
        let hashes = |names: Vec<String>| names.iter().map(|name| plane.adapter(name)).collect();
        let adapters = Adapters { served: served.map(hashes), displaced: hashes(displaced) };
        plane.row(self.0.number).adapters = adapters;
    }

    #[getter]
    fn trust(&self) -> u32 {
        self.read(|row| row.trust)
    }

    #[setter]
    fn set_trust(&self, trust: u32) -> PyResult<()> {
        self.write(|row| row.trust = trust)
    }

    #[setter]
    fn set_worth(&self, worth: Worth) -> PyResult<()> {
        self.write(|row| row.worth = worth)
    }

    /// Failures in a row.
    #[getter]
    fn failures(&self) -> u32 {
        self.read(|row| row.failures)
    }

    #[getter]
    fn backoff_until(&self) -> f64 {
        self.read(|row| row.backoff_until)
    }

    #[getter]
    fn key_refused(&self) -> bool {
        self.read(|row| row.key_refused)
    }

    #[getter]
    fn key_retry_at(&self) -> f64 {
        self.read(|row| row.key_retry_at)
    }

    #[getter]
    fn last_used(&self) -> u64 {
        self.read(|row| row.last_used)
    }

    /// Number of requests in flight.
    #[getter]
    fn open(&self) -> usize {
        self.read(|row| row.flights.len())
    }

    /// Its number among all workers.
    #[getter]
    fn slot(&self) -> u32 {
        self.0.number
    }

    /// Sets whether other replicas are told of its requests in flight.
    fn share(&self, shared: bool, now: f64) -> PyResult<()> {
        guard(|| {
            self.0.plane.lock().share(self.0.number, shared, now);
            Ok(())
        })
    }

    /// Takes over what another replica tells of its requests in flight; whether any is over.
    fn hear(&self, origin: &str, load: &Bound<'_, PyAny>, block_size: u64, now: f64) -> PyResult<bool> {
        let load: Load = load.extract()?;
        guard(|| {
            let mut plane = self.0.plane.lock();
            let (begun, ended) = plane.row(self.0.number).hear(origin, load, block_size, now);
            for _ in 0..begun {
                let decision = plane.decide();
                plane.row(self.0.number).last_used = decision;
            }
            Ok(ended)
        })
    }

    /// Requests in flight of other replicas, and of these prompt tokens not computed yet.
    fn elsewhere(&self, now: f64) -> PyResult<(usize, u64)> {
        self.write(|row| {
            row.peers.expire(now);
            let flights = || row.peers.iter().map(|peer| &peer.flights);
            (flights().map(Flights::len).sum(), flights().map(|one| one.tokens(now)).sum())
        })
    }

    /// Prompt tokens sent and not computed yet.
    fn tokens(&self, now: f64) -> u64 {
        self.read(|row| row.flights.tokens(now))
    }

    /// It could not be reached: others are preferred until then.
    fn failed(&self, until: f64) -> PyResult<()> {
        self.write(|row| {
            row.failures += 1;
            row.backoff_until = until;
        })
    }

    /// It refused the gateway's key.
    fn refuse_key(&self, now: f64) -> PyResult<()> {
        self.write(|row| row.refuse_key(now))
    }

    /// Whether so many new blocks take the place of cached ones there.
    fn evicts(&self, blocks: i64) -> bool {
        self.read(|row| row.evicts(blocks))
    }

    /// Begins a request to it, which needs `blocks` and has `tokens` computed, and of whose prompt `held` blocks are
    /// there; the first `common` of its packed `keys` may be shared. `ended` is called once it is over.
    #[expect(clippy::too_many_arguments, reason = "what a request is")]
    fn begin(
        &self,
        keys: &[u8],
        common: usize,
        tokens: u64,
        prompt_tokens: u64,
        sequences: u64,
        blocks: u64,
        held: u64,
        now: f64,
        ended: Py<PyAny>,
    ) -> PyResult<InFlightRequest> {
        let keys = read_keys(keys)?.into();
        let sent = Sent { skip: 0, keys, common, tokens, prompt_tokens, sequences, blocks, taken: blocks, held };
        guard(|| {
            let mut plane = self.0.plane.lock();
            let number = plane.decide();
            plane.row(self.0.number).begin(number, sent, now);
            drop(plane);
            let at = Arc::clone(&self.0);
            Ok(InFlightRequest { slot: at, number, blocks, sequences, stage: AtomicU8::new(SENT), ended })
        })
    }
}

pub fn read_keys(packed: &[u8]) -> PyResult<Vec<u64>> {
    Ok(ints::packed_keys(packed, None)?.iter().map(Key::key).collect())
}

/// Length in blocks of the common prefix of two packed chains, or `at_least` where it is not longer.
#[pyfunction]
#[pyo3(signature = (a, b, *, at_least = 0))]
pub fn shared_blocks(a: &[u8], b: &[u8], at_least: usize) -> PyResult<usize> {
    let (a, b) = (ints::packed_keys(a, None)?, ints::packed_keys(b, None)?);
    Ok(crate::plane::reservations::shared_blocks(a, b, at_least))
}

/// Keys in the order in which they were used last.
#[pyclass(module = "cachefleet_native")]
#[derive(Default)]
pub struct RecentKeys(crate::plane::recent_keys::RecentKeys);

#[pymethods]
impl RecentKeys {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Uses packed keys, the first of them last; whether any is new, and the packed oldest ones, which are dropped where
    /// there are more than `most`.
    #[pyo3(name = "use")]
    fn use_all<'py>(&mut self, py: Python<'py>, keys: &[u8], most: usize) -> PyResult<(bool, Bound<'py, PyBytes>)> {
        let keys = read_keys(keys)?;
        let (new, dropped) = self.0.use_all(&keys, most);
        Ok((new, ints::packed(py, &dropped)?))
    }
}

const SENT: u8 = 0;
const PREFILLED: u8 = 1;
const DONE: u8 = 2;

/// One request in flight to a worker; a context manager that finishes it.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct InFlightRequest {
    slot: Arc<Slot>,
    number: u64,
    /// Blocks that it needs.
    #[pyo3(get)]
    blocks: u64,
    #[pyo3(get)]
    sequences: u64,
    stage: AtomicU8,
    ended: Py<PyAny>,
}

#[pymethods]
impl InFlightRequest {
    /// The worker has prefilled the prompt.
    fn first_token(&self) -> PyResult<()> {
        if self.stage.load(Ordering::Relaxed) == SENT {
            self.stage.store(PREFILLED, Ordering::Relaxed);
            guard(|| {
                let mut plane = self.slot.plane.lock();
                plane.row(self.slot.number).landed(self.number);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The request is over; `cached_tokens` is what the engine says it served from cache. Idempotent.
    #[pyo3(signature = (*, cached_tokens = None))]
    fn finish(&self, py: Python<'_>, cached_tokens: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        if self.stage.swap(DONE, Ordering::Relaxed) == DONE {
            return Ok(());
        }
        guard(|| {
            let mut plane = self.slot.plane.lock();
            plane.row(self.slot.number).close(self.number, cached_tokens.is_some());
            Ok(())
        })?;
        self.ended.call0(py).map(|_| ())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.finish(py, None)
    }
}

/// An unknown plane's row is refused.
pub fn one_plane<'a>(mut rows: impl Iterator<Item = &'a WorkerRow>, plane: &Plane) -> PyResult<()> {
    let same = rows.all(|row| row.plane().same(plane));
    same.then_some(()).ok_or_else(|| PyValueError::new_err("rows: of another plane"))
}
