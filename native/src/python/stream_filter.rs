//! `StreamFilter`: takes out of a stream what only the gateway asked for, and counts it; and the same of whole answers.

use super::ask::endpoint_of;
use super::errors::guard;
use crate::transport::relay::{
    Passed, Rules, SharedFilter, StreamFilter as Filter, Usage, usage_of, with_model, without_ids, without_zeros,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::borrow::Cow;

/// The filter of one stream, fed whole events, in order, by Python or by the relay of the stream.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct StreamFilter(pub SharedFilter);

#[pymethods]
impl StreamFilter {
    /// Of an `endpoint` other than chats, completions and speech the stream passes as it is. `fingerprint` is the worker's last
    /// system fingerprint, as JSON (b"" where it has none); None where it is not known.
    /// `echoes`: so many choices begin with their prompt, which may be among the ids.
    #[new]
    #[pyo3(signature = (endpoint, *, strip_usage, strip_ids, single, fingerprint = None, echoes = 0))]
    fn new(
        endpoint: &str,
        strip_usage: bool,
        strip_ids: bool,
        single: bool,
        fingerprint: Option<Vec<u8>>,
        echoes: u64,
    ) -> PyResult<Self> {
        let (endpoint, rules) = (endpoint_of(endpoint)?, Rules { strip_usage, strip_ids, single, echoes });
        let chunks = endpoint.completes() || endpoint.hears();
        let filter = if chunks { Filter::new(rules, fingerprint) } else { Filter::passing(endpoint) };
        Ok(Self(SharedFilter::new(filter)))
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

    /// Sets the name that a model has in the stream, as JSON.
    fn name_model(&self, name: &[u8]) {
        self.0.lock().name_model(name);
    }

    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.0.lock().fingerprint().map(|fingerprint| PyBytes::new(py, fingerprint))
    }

    /// The usage that has come.
    #[getter]
    fn usage(&self) -> Option<Counts> {
        self.0.lock().usage().map(counts)
    }

    /// The counts with which the stream has begun, where it begins with some.
    #[getter]
    fn begun(&self) -> Option<Counts> {
        self.0.lock().begun().map(counts)
    }

    /// Tokens so far: those produced, those of all prompts, those of the longest prompt.
    #[getter]
    fn counted(&self) -> (u64, u64, u64) {
        self.0.lock().counted()
    }

    /// Number of the next event.
    #[getter]
    fn sequence(&self) -> u64 {
        self.0.lock().sequence()
    }
}

/// Tokens of the prompt, those produced, and those of the prompt that came from cache; None for what is not known.
pub type Counts = (u64, Option<u64>, Option<u64>);

pub fn counts(usage: Usage) -> Counts {
    (usage.prompt, usage.completion, usage.cached)
}

/// What an event adds to the digest of all events of a recorded stream that were passed on.
#[pyfunction]
pub fn event_digest(event: &[u8]) -> PyResult<u64> {
    guard(|| {
        let mut passed = Passed::default();
        passed.add(event);
        Ok(passed.digest)
    })
}

/// The usage of a whole answer of an endpoint; None where it has none.
#[pyfunction]
pub fn answer_usage(body: &[u8], endpoint: &str) -> PyResult<Option<Counts>> {
    guard(|| Ok(usage_of(body, endpoint_of(endpoint)?).map(counts)))
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

/// An answer's JSON with another model; `name` is JSON.
#[pyfunction]
#[pyo3(name = "with_model")]
pub fn answer_with_model<'py>(body: &Bound<'py, PyBytes>, name: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    guard(|| Ok(changed(body, with_model(body.as_bytes(), name))))
}

fn changed<'py>(before: &Bound<'py, PyBytes>, after: Cow<'_, [u8]>) -> Bound<'py, PyBytes> {
    match after {
        Cow::Borrowed(_) => before.clone(),
        Cow::Owned(after) => PyBytes::new(before.py(), &after),
    }
}
