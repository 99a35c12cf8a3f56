//! `Candidates`: workers asked about again and again.

use crate::index::Index;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// Workers by name with their slots, looked up anew when the index's slots have changed.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Candidates {
    names: Vec<String>,
    slots: Mutex<(u64, Vec<Option<u32>>)>,
}

#[pymethods]
impl Candidates {
    #[new]
    fn new(names: Vec<String>) -> Self {
        let slots = vec![None; names.len()];
        Self { names, slots: Mutex::new((u64::MAX, slots)) }
    }

    fn __len__(&self) -> usize {
        self.names.len()
    }
}

impl Candidates {
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Acts with each candidate's slot in the index as it is now.
    pub fn with<T>(&self, index: &Index, act: impl FnOnce(&[Option<u32>]) -> T) -> T {
        let mut known = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != index.version() {
            let slots = self.names.iter().map(|name| index.slot(name)).collect();
            *known = (index.version(), slots);
        }
        act(&known.1)
    }
}
