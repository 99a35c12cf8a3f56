//! `KeptBytes`: what is kept of streams that other workers may have to go on with, against a bound.

use std::sync::Arc;

use crate::transport::relay::KeptBytes as Kept;
use pyo3::prelude::*;

/// Counts bytes against a bound, for all threads.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct KeptBytes(pub Arc<Kept>);

#[pymethods]
impl KeptBytes {
    #[new]
    fn new(limit: usize) -> Self {
        Self(Arc::new(Kept::new(limit)))
    }

    /// Counts so many bytes more, unless there is no room for them.
    fn take(&self, size: usize) -> bool {
        self.0.take(size)
    }

    /// Counts so many bytes less.
    fn give_back(&self, size: usize) {
        self.0.give_back(size);
    }

    /// Bytes that are counted now.
    #[getter]
    fn held(&self) -> usize {
        self.0.held()
    }
}
