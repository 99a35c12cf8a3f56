//! `Transport`: the transport's threads, and what they tell Python.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use pyo3::prelude::*;

use super::errors::guard;
use crate::transport::completions::Completions;
use crate::transport::panics::Panics;
use crate::transport::threads::Threads;

/// Makes the value that Python is told; runs with Python's lock.
pub type Payload = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>> + Send>;

/// Completions of Python's: whom each is for, by the number that Python gave or was given, and what it is.
pub type Told = Completions<(u64, Payload)>;

/// The transport's threads; `take` returns what has happened, once the descriptor `fileno` is readable.
#[pyclass(frozen)]
pub struct Transport {
    pub(super) threads: Threads,
    pub(super) told: Arc<Told>,
    pub(super) panics: Arc<Panics>,
}

#[pymethods]
impl Transport {
    #[new]
    #[pyo3(signature = (*, threads = 1))]
    fn new(threads: usize) -> io::Result<Self> {
        Ok(Self { threads: Threads::start(threads)?, told: Arc::new(Completions::new()?), panics: Arc::default() })
    }

    /// Requests that failed because of a panic.
    #[getter]
    fn panics(&self) -> u64 {
        self.panics.count()
    }

    fn fileno(&self) -> RawFd {
        self.told.descriptor()
    }

    /// A list of pairs: whom it is for, and what it is. What cannot be made for one is told to nobody, and reported.
    fn take<'py>(&self, py: Python<'py>) -> Vec<(u64, Bound<'py, PyAny>)> {
        let made = |(whom, payload): (u64, Payload)| match guard(|| payload(py)) {
            Ok(value) => Some((whom, value)),
            Err(error) => {
                self.panics.note();
                error.write_unraisable(py, None);
                None
            }
        };
        self.told.take().into_iter().filter_map(made).collect()
    }
}
