//! `Picker`: the server of Envoys that ask where requests go, and `Pick`: one of these requests.

use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::Arc;

use bytes::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyBrokenPipeError, PyValueError};
use pyo3::prelude::*;

use super::client_request::ClientRequest;
use super::server::piece_told;
use super::stream_filter::{Counts, StreamFilter, counts};
use super::transport::{Told, Transport};
use crate::picker::{Event, Pick as Waiting, Picker as Native, PickerApp, Route};
use crate::transport::server::{Asked, Piece};

/// A server of gRPC for Envoys; what it is asked, and which requests end early, is told to Python under two numbers.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Picker(Native);

#[pymethods]
impl Picker {
    #[new]
    #[pyo3(signature = (transport, *, requests, departures, body_bytes))]
    fn new(transport: &Transport, requests: u64, departures: u64, body_bytes: usize) -> Self {
        let told = Arc::clone(&transport.told);
        let app = Box::new(Telling { told, requests, departures });
        Self(Native::new(app, body_bytes, Arc::clone(&transport.panics), transport.threads.all()))
    }

    /// Takes connections from a socket that listens; `descriptor` is the caller's no more.
    #[expect(unsafe_code, reason = "there is no other way to take over a socket that Python opened or inherited")]
    fn listen(&self, descriptor: RawFd) -> io::Result<()> {
        if descriptor < 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: as in `Server.listen`: the caller has detached the descriptor from its socket object.
        self.0.listen(unsafe { TcpListener::from_raw_fd(descriptor) })
    }

    /// Serves connections that come from now on by TLS, with this certificate and private key (PEM). `ValueError` where
    /// they cannot be used; what was presented before stays.
    fn present(&self, certificate: &[u8], key: &[u8]) -> PyResult<()> {
        self.0.present(certificate, key).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// From now on it says that it does not serve.
    fn leave(&self) {
        self.0.leave();
    }

    /// Takes no more connections, and asks Envoys for nothing more on theirs.
    fn stop(&self) {
        self.0.stop();
    }

    /// Cuts all connections.
    fn cut(&self) {
        self.0.cut();
    }

    /// Open connections.
    #[getter]
    fn connections(&self) -> usize {
        self.0.connections()
    }
}

/// Tells Python what Envoys ask.
struct Telling {
    told: Arc<Told>,
    requests: u64,
    departures: u64,
}

impl PickerApp for Telling {
    fn asked(&self, asked: Asked, pick: Arc<Waiting>) {
        let request = ClientRequest::new(asked, Arc::clone(&self.told), Some(pick));
        self.told.push((self.requests, Box::new(|py| request.into_bound_py_any(py))));
    }

    fn piece(&self, number: u64, piece: Piece) {
        self.told.push(piece_told(number, piece));
    }

    /// Whether the answer has ended.
    fn told(&self, number: u64, event: Event) {
        self.told.push((number, Box::new(move |py| (event == Event::Ended).into_bound_py_any(py))));
    }

    fn left(&self, key: u64) {
        self.told.push((self.departures, Box::new(move |py| key.into_bound_py_any(py))));
    }
}

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
