//! `Index`: which worker holds which block.

use super::candidates::{Candidates, Known, NO_SLOT, read_rules};
use super::errors::{OperationError, guard};
use super::ints;
use super::state::{Locked, State};
use crate::digest::Tier;
use crate::index::{Limits, Operation, Rule, Stats, check};
use crate::reader::{Key, unpack};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

#[pyclass(frozen, module = "cachefleet_native")]
pub struct Index(pub(super) Arc<Locked>);

#[pymethods]
impl Index {
    #[new]
    #[pyo3(signature = (*, max_workers = 4096, max_held = Limits::MOST_HELD, max_bytes = Limits::MOST_BYTES))]
    fn new(max_workers: usize, max_held: u64, max_bytes: usize) -> PyResult<Self> {
        let limits = Limits { workers: max_workers, held: max_held, bytes: max_bytes };
        if limits.exceed_bounds() {
            let (workers, held, bytes) = (Limits::MOST_WORKERS, Limits::MOST_HELD, Limits::MOST_BYTES);
            let most = format!("at most {workers} workers, {held} held blocks and {bytes} bytes");
            return Err(PyValueError::new_err(most));
        }
        guard(|| Ok(Self(Arc::new(Locked::new(limits)))))
    }

    /// Records that a worker holds a chain of packed keys.
    fn store(&self, worker: &str, parent: &Bound<'_, PyAny>, keys: &[u8], tier: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys = operation_keys(keys)?;
        let tier = operation_tier(tier);
        let parent = parent.extract().map_err(|_| OperationError::new_err("parent: must be a block key or 0"));
        let stored = |parent, tier| Operation::Stored { parent, keys: Cow::Borrowed(&keys), tier };
        self.0.write(|state, seen| {
            // Keys first, as the reference complains.
            check(&stored(parent.as_ref().map_or(0, |parent| *parent), Tier::Device), seen)?;
            let operation = stored(parent?, tier?);
            Ok(self.0.counted(state.index.apply(worker, &operation), operation.keys().len())?)
        })?
    }

    /// Records that a worker no longer holds packed keys, in any order.
    fn remove(&self, worker: &str, keys: &[u8], tier: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys = operation_keys(keys)?;
        let tier = operation_tier(tier);
        let removed = |tier| Operation::Removed { keys: Cow::Borrowed(&keys), tier };
        self.0.write(|state, seen| {
            check(&removed(Tier::Device), seen)?;
            Ok(state.index.apply(worker, &removed(tier?))?)
        })?
    }

    /// Records that a worker holds nothing any more.
    fn clear(&self, worker: &str) -> PyResult<()> {
        Ok(self.0.write(|state, _| state.index.apply(worker, &Operation::Cleared))??)
    }

    fn forget(&self, worker: &str) -> PyResult<()> {
        self.0.write(|state, _| state.index.forget(worker))
    }

    /// For each candidate how many of the first `limit` keys it holds before the first it lacks.
    /// Of those with a rule, how many of the first `usable` a hit would be.
    #[pyo3(name = "match", signature = (keys, candidates, *, tier = 0, limit = None, rules = Vec::new(), usable = None))]
    fn match_names<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        candidates: &Bound<'py, PyAny>,
        tier: u64,
        limit: Option<isize>,
        rules: Vec<(bool, Vec<u32>, u32)>,
        usable: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (tier, asked) = (match_tier(tier)?, guard(|| ints::keys(keys, limit))?);
        let candidates = candidates
            .try_iter()?
            .map(|name| Ok(name?.cast_into()?))
            .collect::<PyResult<Vec<Bound<'py, PyString>>>>()?;
        let names = candidates.iter().map(|name| name.to_str()).collect::<PyResult<Vec<_>>>()?;
        let rules = read_rules(rules, names.len())?;
        let depths = self.0.with(|state| {
            let known = Known::new(&state.index, names.iter().copied());
            state.walk(&known, &rules, &asked, tier, usable).collect::<Vec<u32>>()
        })?;
        PyList::new(keys.py(), depths)
    }

    /// Of keys that follow those matched on the device, how many each candidate holds below it.
    fn loadable(
        &self,
        keys: &Bound<'_, PyAny>,
        candidates: Vec<String>,
        matched: Vec<u32>,
        rules: Vec<(bool, Vec<u32>, u32)>,
    ) -> PyResult<Vec<u32>> {
        if matched.len() != candidates.len() {
            return Err(PyValueError::new_err("matched: one for each candidate"));
        }
        let rules = read_rules(rules, candidates.len())?;
        let keys = match keys.cast::<PyBytes>() {
            Ok(packed) => guard(|| operation_keys(packed.as_bytes()))?,
            Err(_) => guard(|| ints::keys(keys, None))?,
        };
        self.0.with(move |state| {
            let known = Known::new(&state.index, candidates.iter().map(String::as_str));
            let mut loadable = state.loadable(&known, &rules, &matched, &keys);
            loadable.resize(matched.len(), 0);
            loadable
        })
    }

    /// The same for candidates looked up before, as packed little-endian u32.
    #[pyo3(signature = (keys, candidates, *, tier = 0, limit = None, usable = None))]
    fn match_packed<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        candidates: &Candidates,
        tier: u64,
        limit: Option<isize>,
        usable: Option<usize>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let tier = match_tier(tier)?;
        PyBytes::new_with(keys.py(), 4 * candidates.names().len(), |out| match keys.cast::<PyBytes>() {
            Ok(packed) => self.0.depths(ints::packed_keys(packed.as_bytes(), limit)?, candidates, tier, usable, out),
            Err(_) => self.0.depths(&guard(|| ints::keys(keys, limit))?, candidates, tier, usable, out),
        })
    }

    fn digest(&self, worker: &str) -> PyResult<u64> {
        self.0.with(|state| state.index.digest(worker))
    }

    /// Blocks that a worker holds, in all tiers.
    fn held(&self, worker: &str) -> PyResult<u64> {
        self.0.with(|state| state.index.held(worker))
    }

    fn held_below(&self, worker: &str) -> PyResult<u64> {
        self.0.with(|state| state.index.held_below(worker))
    }

    /// For each worker the sum over its blocks of 1 / number of their holders.
    fn shares(&self) -> PyResult<HashMap<String, f64>> {
        self.0.with(|state| state.index.shares().map(|(name, share)| (name.to_owned(), share)).collect())
    }

    /// Blocks of each worker, distinct blocks, bytes.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, usize, usize)> {
        let Stats { held, keys, bytes } = self.0.with(|state| state.index.stats())?;
        let by_worker = PyDict::new(py);
        for (worker, blocks) in held {
            by_worker.set_item(worker, blocks)?;
        }
        Ok((by_worker, keys, bytes))
    }

    /// Calls refused because a bound was reached, and the keys in them; nothing of such a call is applied.
    #[getter]
    fn refused(&self) -> (u64, u64) {
        self.0.refused()
    }
}

impl Locked {
    /// Matched blocks of each candidate, in their order, as little-endian u32.
    pub(super) fn depths<K: Key>(
        &self,
        keys: &[K],
        candidates: &Candidates,
        tier: Tier,
        usable: Option<usize>,
        out: &mut [u8],
    ) -> PyResult<()> {
        self.with(|state| {
            let known = candidates.known(&state.index);
            let depths = state.walk(&known, candidates.rules(), keys, tier, usable);
            for (to, depth) in out.as_chunks_mut::<4>().0.iter_mut().zip(depths) {
                *to = depth.to_le_bytes();
            }
        })
    }
}

impl State {
    /// Matched blocks of each known worker, in their order; of those with a rule, the blocks of a hit.
    pub(super) fn walk<'a, K: Key>(
        &'a mut self,
        known: &'a Known,
        rules: &[Rule],
        keys: &[K],
        tier: Tier,
        usable: Option<usize>,
    ) -> impl Iterator<Item = u32> + 'a + use<'a, K> {
        let Self { index, walk, strips } = self;
        index.walk(walk, &known.asked, keys, tier);
        if !rules.is_empty() {
            let asked = known.slots.iter().copied().zip(rules).filter(|(slot, _)| *slot != NO_SLOT);
            index.settle(walk, strips, asked, keys, usable.unwrap_or(usize::MAX));
        }
        known.slots.iter().map(|slot| walk.depth(*slot))
    }

    /// Blocks below the device that follow the matched ones of each known worker, in their order, 0 for one with a rule;
    /// empty where nobody has any.
    pub(super) fn loadable<K: Key>(&self, known: &Known, rules: &[Rule], depths: &[u32], keys: &[K]) -> Vec<u32> {
        if !self.index.has_host() {
            return Vec::new();
        }
        let of = |(place, (slot, depth)): (usize, (&u32, &u32))| {
            let plain = *slot != NO_SLOT && rules.get(place).is_none_or(Rule::plain);
            let rest = keys.get(*depth as usize..).filter(|_| plain);
            rest.map_or(0, |rest| self.index.loadable(*slot, rest))
        };
        known.slots.iter().zip(depths).enumerate().map(of).collect()
    }
}

fn operation_keys(packed: &[u8]) -> PyResult<Vec<u64>> {
    unpack(packed).ok_or_else(|| {
        OperationError::new_err(format!("keys: packed keys must be a multiple of 8 bytes, got {}", packed.len()))
    })
}

fn operation_tier(tier: &Bound<'_, PyAny>) -> PyResult<Tier> {
    let known = tier.extract().ok().and_then(Tier::from_number);
    known.ok_or_else(|| OperationError::new_err("tier: must be 0 (device) or 1 (host)"))
}

pub(super) fn match_tier(tier: u64) -> PyResult<Tier> {
    Tier::from_number(tier).ok_or_else(|| PyValueError::new_err("tier: must be 0 (device) or 1 (host)"))
}
