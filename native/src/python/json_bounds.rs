//! `json_excess`: which bound a JSON body crosses.

use super::errors::guard;
use crate::json_bounds::{Limits, fault};
use pyo3::prelude::*;

/// Bytes from which on others may run meanwhile.
const LARGE: usize = 256 * 1024;

/// The name of the first of these limits that `body` crosses, "text" where it is no text; None where all is well. Releases
/// the GIL for a large body.
#[pyfunction]
pub fn json_excess(
    py: Python<'_>,
    body: &[u8],
    containers: usize,
    strings: usize,
    items: usize,
    depth: usize,
) -> PyResult<Option<&'static str>> {
    let limits = Limits { containers, strings, items, depth };
    guard(|| Ok(if body.len() > LARGE { py.detach(|| fault(body, &limits)) } else { fault(body, &limits) }))
}
