//! `Pick`: a request of an Envoy that asks where it goes.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::exceptions::PyBrokenPipeError;
use pyo3::prelude::*;

use super::stream_filter::{Counts, StreamFilter, counts};
use crate::picker::{Pick as Waiting, Route};

/// A request that Envoy sends where `route` says, unless it is answered; then what is known of its answer.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Pick(pub(super) Arc<Waiting>);

#[pymethods]
impl Pick {
    /// Endpoints to choose among; None for all.
    #[getter]
    fn subset(&self) -> Option<Vec<String>> {
        self.0.subset.clone()
    }

    /// Sends the request to the first of these endpoints (separated by commas) that can be reached. What the filter takes
    /// out of the answer's stream the client does not get. False under `number` tells that a stream has begun, True that
    /// the answer has ended. `BrokenPipeError` where Envoy has ended the request.
    fn route(
        &self,
        endpoints: String,
        headers: Vec<(String, String)>,
        body: &[u8],
        answer_headers: Vec<(String, Vec<u8>)>,
        filter: &StreamFilter,
        number: u64,
    ) -> PyResult<()> {
        let answer_headers = answer_headers.into_iter().map(|(name, value)| (name, Bytes::from(value))).collect();
        let body = Bytes::copy_from_slice(body);
        let route = Route { endpoints, headers, body, answer_headers, filter: filter.0.clone(), number };
        if self.0.route(route) { Ok(()) } else { Err(PyBrokenPipeError::new_err("the request has ended")) }
    }

    /// The answer's status; 0 before its head.
    #[getter]
    fn status(&self) -> u16 {
        self.0.known().status
    }

    /// The endpoint that has answered; None where Envoy does not tell.
    #[getter]
    fn served(&self) -> Option<String> {
        self.0.known().served.clone()
    }

    /// The usage of a whole answer.
    #[getter]
    fn usage(&self) -> Option<Counts> {
        self.0.known().usage.map(counts)
    }

    /// Envoy has answered itself: no endpoint could be reached.
    #[getter]
    fn unreached(&self) -> bool {
        self.0.known().unreached
    }

    /// All of the answer has come.
    #[getter]
    fn finished(&self) -> bool {
        self.0.known().finished
    }
}
