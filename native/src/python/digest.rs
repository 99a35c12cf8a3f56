//! `Digest`: the digest of a set that the caller keeps.

use super::errors::guard;
use super::index::match_tier;
use super::ints;
use crate::digest::digest;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// The digest of `cachefleet_core.digest`: the caller adds each element once and removes only elements that are in.
#[pyclass(frozen, module = "cachefleet_native")]
#[derive(Default)]
pub struct Digest(AtomicU64);

#[pymethods]
impl Digest {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[getter]
    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds keys, packed or as integers.
    #[pyo3(signature = (keys, tier = 0))]
    fn add(&self, keys: &Bound<'_, PyAny>, tier: u64) -> PyResult<()> {
        self.0.fetch_add(sum(keys, tier)?, Ordering::Relaxed);
        Ok(())
    }

    /// Removes keys, each of which is in the set.
    #[pyo3(signature = (keys, tier = 0))]
    fn remove(&self, keys: &Bound<'_, PyAny>, tier: u64) -> PyResult<()> {
        self.0.fetch_sub(sum(keys, tier)?, Ordering::Relaxed);
        Ok(())
    }

    fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn sum(keys: &Bound<'_, PyAny>, tier: u64) -> PyResult<u64> {
    let tier = match_tier(tier)?;
    guard(|| Ok(digest(&ints::all_keys(keys)?, tier)))
}
