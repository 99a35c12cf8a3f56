//! Functions of packed numbers alone.

use super::errors::{OperationError, guard};
use super::ints;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Token ids as packed little-endian u32, which `Keyer.packed_ids` takes; refuses what `Keyer.keys` refuses.
#[pyfunction]
pub fn pack_ids<'py>(ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let read = guard(|| ints::token_ids(ids, ids.len()?))?;
    ints::packed_u32(ids.py(), &read)
}

/// How many of the first packed keys each of some other packed keys begins with.
#[pyfunction]
pub fn common_prefixes<'py>(py: Python<'py>, keys: &[u8], others: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let keys = ints::packed_keys(keys, None)?;
    let others = others.try_iter()?.map(|other| Ok(other?.cast_into()?)).collect::<PyResult<Vec<Bound<PyBytes>>>>()?;
    let common = |other: &Bound<PyBytes>| {
        let other = ints::packed_keys(other.as_bytes(), None)
            .map_err(|_| OperationError::new_err("others: packed keys must be a multiple of 8 bytes"))?;
        Ok(keys.iter().zip(other).take_while(|(key, other)| key == other).count())
    };
    PyList::new(py, others.iter().map(common).collect::<PyResult<Vec<usize>>>()?)
}
