//! `Candidates`: workers that are matched again and again.

use crate::index::{Asked, Index};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Workers by name with their slots, looked up anew when the index's slots have changed.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Candidates {
    names: Vec<String>,
    known: Mutex<Known>,
}

/// The candidates' slots at one version of an index.
#[derive(Default)]
pub struct Known {
    version: Option<u64>,
    /// Slot of each candidate; `NO_SLOT` for one that holds nothing.
    pub slots: Vec<u32>,
    pub asked: Asked,
}

/// No slot: larger than any.
const NO_SLOT: u32 = u32::MAX;

impl Known {
    pub fn new<'a>(index: &Index, names: impl Iterator<Item = &'a str>) -> Self {
        let slots: Vec<u32> = names.map(|name| index.slot(name).unwrap_or(NO_SLOT)).collect();
        let asked = Asked::new(slots.iter().copied().filter(|slot| *slot != NO_SLOT));
        Self { version: Some(index.version()), slots, asked }
    }
}

#[pymethods]
impl Candidates {
    #[new]
    fn new(names: Vec<String>) -> Self {
        Self { names, known: Mutex::default() }
    }

    fn __len__(&self) -> usize {
        self.names.len()
    }
}

impl Candidates {
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Their slots in the present version of the index.
    pub fn known(&self, index: &Index) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.version != Some(index.version()) {
            *known = Known::new(index, self.names.iter().map(String::as_str));
        }
        known
    }
}
