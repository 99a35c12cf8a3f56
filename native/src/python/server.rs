//! `Server`: the public port's HTTP server.

use std::io;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::client_request::ClientRequest;
use super::report_taps::ReportTaps;
use super::transport::{Payload, Told, Transport};
use crate::transport::server::{App, Asked, Bounds, Piece, Server as Native, Taps, Websockets};

const SETTLE: Duration = Duration::from_secs(1);
const LINGER: Duration = Duration::from_secs(2);

/// An HTTP server; what it is asked, and which clients leave, is told to Python under two numbers.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct Server(Native);

/// Tells Python what happens to requests.
struct Telling {
    told: Arc<Told>,
    requests: u64,
    departures: u64,
}

#[pymethods]
impl Server {
    /// Tells of requests and departures under these numbers. Times are in seconds; each `WebSocket` is passed
    /// on to the Unix socket at the path `websockets`, less what `taps` take out of it.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "what a server is")]
    #[pyo3(signature = (transport, *, requests, departures, head_seconds, idle_seconds, send_seconds, websockets = None, taps = None))]
    fn new(
        transport: &Transport,
        requests: u64,
        departures: u64,
        head_seconds: f64,
        idle_seconds: f64,
        send_seconds: f64,
        websockets: Option<PathBuf>,
        taps: Option<&ReportTaps>,
    ) -> PyResult<Self> {
        let told = Arc::clone(&transport.told);
        let bounds = Bounds {
            head: seconds(head_seconds)?,
            idle: seconds(idle_seconds)?,
            send: seconds(send_seconds)?,
            settle: SETTLE,
            linger: LINGER,
        };
        let app = Box::new(Telling { told, requests, departures });
        let panics = Arc::clone(&transport.panics);
        let taps = taps.map(|taps| Box::new(taps.clone()) as Box<dyn Taps>);
        let websockets = websockets.map(|path| Websockets { path, taps });
        Ok(Self(Native::new(app, bounds, websockets, panics, transport.threads.all())))
    }

    /// Takes connections from a socket that listens; `descriptor` is the caller's no more.
    #[expect(unsafe_code, reason = "there is no other way to take over a socket that Python opened or inherited")]
    fn listen(&self, descriptor: RawFd) -> io::Result<()> {
        if descriptor < 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the caller has detached the descriptor from its socket object, so that nobody else closes it. One that
        // is no socket that listens makes the calls on it fail.
        self.0.listen(unsafe { TcpListener::from_raw_fd(descriptor) })
    }

    /// Serves connections that come from now on by TLS, with this certificate and private key (PEM). `ValueError` where
    /// they cannot be used; what was presented before stays.
    fn present(&self, certificate: &[u8], key: &[u8]) -> PyResult<()> {
        self.0.present(certificate, key).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// From now on each answer that begins says `connection: close`.
    fn leave(&self) {
        self.0.leave();
    }

    /// Takes no more connections, and closes those that are idle.
    fn stop(&self) {
        self.0.stop();
    }

    /// Cuts all connections.
    fn cut(&self) {
        self.0.cut();
    }

    /// Open connections, but for those whose client has only to read its last answer.
    #[getter]
    fn connections(&self) -> usize {
        self.0.connections()
    }
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

impl App for Telling {
    fn asked(&self, asked: Asked) {
        let request = ClientRequest::new(asked, Arc::clone(&self.told), None);
        self.told.push((self.requests, Box::new(|py| request.into_bound_py_any(py))));
    }

    fn piece(&self, number: u64, piece: Piece) {
        self.told.push(piece_told(number, piece));
    }

    fn left(&self, key: u64) {
        self.told.push((self.departures, Box::new(move |py| key.into_bound_py_any(py))));
    }
}

/// What Python is told of a piece: its bytes and whether it is the last one; None where the client is gone.
pub(super) fn piece_told(number: u64, piece: Piece) -> (u64, Payload) {
    let made: Payload = Box::new(|py| match piece {
        Piece::Data { data, last } => (PyBytes::new(py, &data), last).into_bound_py_any(py),
        Piece::Broken => Ok(py.None().into_bound(py)),
    });
    (number, made)
}
