//! Exceptions for Python, and the guard that turns panics into one.

use crate::ask::Fault;
use crate::frame::FrameError as Malformed;
use crate::index::{Full, OperationError as Refused};
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

create_exception!(cachefleet_native, OperationError, PyValueError, "An operation that no sound stream contains.");
create_exception!(cachefleet_native, IndexFullError, PyRuntimeError, "The index has reached one of its bounds.");
create_exception!(cachefleet_native, FrameError, PyValueError, "Bytes that are no Delta or Snapshot frame.");
create_exception!(
    cachefleet_native,
    AskError,
    PyValueError,
    "A refused body: message and member, None where unreadable."
);
create_exception!(cachefleet_native, InternalError, PyRuntimeError, "A defect in the native code; see its message.");

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("OperationError", py.get_type::<OperationError>())?;
    module.add("IndexFullError", py.get_type::<IndexFullError>())?;
    module.add("FrameError", py.get_type::<FrameError>())?;
    module.add("AskError", py.get_type::<AskError>())?;
    module.add("InternalError", py.get_type::<InternalError>())
}

impl From<Refused> for PyErr {
    fn from(error: Refused) -> Self {
        OperationError::new_err(error.to_string())
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unreadable => AskError::new_err((None::<String>, None::<String>)),
            Fault::Member { message, name } => AskError::new_err((message, name)),
        }
    }
}

impl From<Malformed> for PyErr {
    fn from(error: Malformed) -> Self {
        FrameError::new_err(error.to_string())
    }
}

impl From<Full> for PyErr {
    fn from(full: Full) -> Self {
        IndexFullError::new_err(match full {
            Full::Blocks { held, limit } => format!("the index holds {held} blocks, its bound is {limit}"),
            Full::Memory { bytes, limit } => format!("the index takes {bytes} bytes of memory, its bound is {limit}"),
            Full::Workers { known, limit } => format!("the index has {known} workers, its bound is {limit}"),
        })
    }
}

/// The result of `act`, or `InternalError` where it panics.
pub fn guard<T>(act: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err(InternalError::new_err("a defect in native code")))
}
