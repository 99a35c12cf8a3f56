//! `StreamFilter`: takes out of a chat's or completion's stream what only the gateway asked for; and the same of whole
//! answers.

use super::errors::guard;
use crate::transport::relay::{Rules, SharedFilter, StreamFilter as Filter, without_ids, without_zeros};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::borrow::Cow;

/// The filter of one stream, fed whole events, in order, by Python or by the relay of the stream.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct StreamFilter(pub SharedFilter);

#[pymethods]
impl StreamFilter {
    /// `fingerprint` is the worker's last system fingerprint, as JSON (b"" where it has none); None where it is not known.
    /// `echoes`: so many choices begin with their prompt, which may be among the ids.
    #[new]
    #[pyo3(signature = (*, strip_usage, strip_ids, single, fingerprint = None, echoes = 0))]
    fn new(strip_usage: bool, strip_ids: bool, single: bool, fingerprint: Option<Vec<u8>>, echoes: u64) -> Self {
        let rules = Rules { strip_usage, strip_ids, single, echoes };
        Self(SharedFilter::new(Filter::new(rules, fingerprint)))
    }

    /// The bytes to send to the client now.
    fn feed<'py>(&self, py: Python<'py>, event: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        guard(|| Ok(PyBytes::new(py, &self.0.feed([event].into_iter()))))
    }

    /// What is still held back, unchanged; for a stream that ends without usage.
    fn end<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        guard(|| {
            let mut out = Vec::new();
            self.0.lock().end(&mut out);
            Ok(PyBytes::new(py, &out))
        })
    }

    /// Sets whether counts of cached tokens that are 0 are left out.
    fn omit_zeros(&self, omit: bool) {
        self.0.lock().omit_zeros(omit);
    }

    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.lock().fingerprint().map(|fingerprint| PyBytes::new(py, fingerprint))
    }

    /// The usage that has come, as JSON.
    #[getter]
    fn usage<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.lock().usage().map(|usage| PyBytes::new(py, usage))
    }

    /// Tokens so far: those produced, those of all prompts, those of the longest prompt.
    #[getter]
    fn counted(&self) -> (u64, u64, u64) {
        let filter = self.0.lock();
        let count = filter.count();
        (count.produced, count.prompts, count.longest_prompt)
    }
}

/// A whole answer with null for its token ids.
#[pyfunction]
pub fn without_token_ids<'py>(body: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyBytes>> {
    guard(|| Ok(changed(body, without_ids(body.as_bytes()))))
}

/// An answer's JSON, or an event of a stream, without counts of cached tokens that are 0.
#[pyfunction]
pub fn without_zero_counts<'py>(data: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyBytes>> {
    guard(|| Ok(changed(data, without_zeros(data.as_bytes()))))
}

fn changed<'py>(before: &Bound<'py, PyBytes>, after: Cow<'_, [u8]>) -> Bound<'py, PyBytes> {
    match after {
        Cow::Borrowed(_) => before.clone(),
        Cow::Owned(after) => PyBytes::new(before.py(), &after),
    }
}
