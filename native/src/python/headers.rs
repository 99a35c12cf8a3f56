//! Which headers go through the gateway: bindings of `headers`.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};

use crate::headers::{Field, is_of_trusted, to_worker};

/// A client's headers without those that only a `trusted` tenant may send to an engine.
#[pyfunction]
#[pyo3(signature = (headers, *, trusted))]
pub fn permitted_headers(headers: Vec<Bound<'_, PyTuple>>, trusted: bool) -> PyResult<Vec<Bound<'_, PyTuple>>> {
    let mut kept = Vec::with_capacity(headers.len());
    for header in headers {
        if trusted || !is_of_trusted(header.get_item(0)?.cast::<PyBytes>()?.as_bytes()) {
            kept.push(header);
        }
    }
    Ok(kept)
}

/// A client's headers that a worker may see, and the worker's `key`, "" for none; `hooked` keeps the hook of a gate.
#[pyfunction]
#[pyo3(signature = (headers, *, key, hooked = false))]
#[expect(clippy::needless_pass_by_value, reason = "as pyo3 gives them")]
pub fn upstream_headers<'py>(
    py: Python<'py>,
    headers: Vec<(PyBackedBytes, PyBackedBytes)>,
    key: &str,
    hooked: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let fields: Vec<Field<'_>> = headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    to_worker(&fields, key, hooked).into_bound_py_any(py)
}
