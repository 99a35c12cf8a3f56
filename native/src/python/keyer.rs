//! `Keyer`: block keys of one namespace.

use super::errors::guard;
use super::ints;
use crate::json;
use crate::keyer::{Keyer as Inner, Secrets};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// Largest block size, in tokens.
const MAX_BLOCK: usize = 1 << 20;
/// Most tokens after a block that its key covers.
const MAX_LOOKAHEAD: usize = 1024;

/// Computes the keys of token sequences; `secrets` are the four words that HMAC gives for the namespace.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Keyer(pub(super) Inner);

#[pymethods]
impl Keyer {
    #[new]
    #[pyo3(signature = (secrets, block_size, lookahead = 0))]
    fn new(secrets: [u64; 4], block_size: usize, lookahead: usize) -> PyResult<Self> {
        if !(1..=MAX_BLOCK).contains(&block_size) {
            return Err(PyValueError::new_err(format!("block size must be from 1 to {MAX_BLOCK}, got {block_size}")));
        }
        if lookahead > MAX_LOOKAHEAD {
            return Err(PyValueError::new_err(format!("lookahead must be from 0 to {MAX_LOOKAHEAD}, got {lookahead}")));
        }
        let [root, finish, lane, position] = secrets;
        guard(|| Ok(Self(Inner::new(Secrets { root, finish, lane, position }, block_size, lookahead))))
    }

    /// The keys of the full blocks of `tokens`; `parent` 0 starts a chain, `position` is in blocks.
    #[pyo3(signature = (tokens, parent = 0, position = 0))]
    fn keys<'py>(&self, tokens: &Bound<'py, PyAny>, parent: u64, position: u64) -> PyResult<Bound<'py, PyList>> {
        let keys = guard(|| self.compute(tokens, parent, position))?;
        ints::list(tokens.py(), &keys)
    }

    /// The same as packed little-endian bytes, which every method of this module that takes keys takes, too.
    #[pyo3(signature = (tokens, parent = 0, position = 0))]
    fn packed<'py>(&self, tokens: &Bound<'py, PyAny>, parent: u64, position: u64) -> PyResult<Bound<'py, PyBytes>> {
        let keys = guard(|| self.compute(tokens, parent, position))?;
        ints::packed(tokens.py(), &keys)
    }

    /// The same from packed token ids, little-endian u32.
    #[pyo3(signature = (ids, parent = 0, position = 0))]
    fn packed_ids<'py>(
        &self,
        py: Python<'py>,
        ids: &[u8],
        parent: u64,
        position: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (tokens, rest) = ids.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(PyValueError::new_err("ids: packed ids must be a multiple of 4 bytes"));
        }
        let keys = guard(|| Ok(self.0.keys(tokens, (parent != 0).then_some(parent), position)))?;
        ints::packed(py, &keys)
    }

    /// The same from the token ids in a field of a JSON body; returns their number with the packed keys.
    #[pyo3(signature = (body, field = "prompt"))]
    fn json<'py>(&self, py: Python<'py>, body: &[u8], field: &str) -> PyResult<(usize, Bound<'py, PyBytes>)> {
        let (count, keys) = guard(|| {
            let tokens =
                json::tokens(body, field.as_bytes()).map_err(|error| PyValueError::new_err(error.to_string()))?;
            Ok((tokens.len(), self.0.keys(&tokens, None, 0)))
        })?;
        Ok((count, ints::packed(py, &keys)?))
    }
}

impl Keyer {
    fn compute(&self, tokens: &Bound<'_, PyAny>, parent: u64, position: u64) -> PyResult<Vec<u64>> {
        let covered = self.0.covered(tokens.len()?);
        let tokens = ints::token_ids(tokens, covered)?;
        Ok(self.0.keys(&tokens, (parent != 0).then_some(parent), position))
    }
}
