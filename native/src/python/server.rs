//! `Server`: of HTTP, or of Envoys that ask where requests go.

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
use crate::picker::{Event, Pick, Picker, PickerApp};
use crate::transport::server::{App, Asked, Bounds, Http, HttpApp, Piece, Server as Native, Taps, Websockets};

const SETTLE: Duration = Duration::from_secs(1);
const LINGER: Duration = Duration::from_secs(2);

/// A server; what it is asked, and which clients leave, is told to Python under two numbers.
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
        let bounds = Bounds {
            head: seconds(head_seconds)?,
            idle: seconds(idle_seconds)?,
            send: seconds(send_seconds)?,
            settle: SETTLE,
            linger: LINGER,
        };
        let app = Telling::new(transport, requests, departures);
        let taps = taps.map(|taps| Box::new(taps.clone()) as Box<dyn Taps>);
        let websockets = websockets.map(|path| Websockets { path, taps });
        let http = Http { app: Arc::<Telling>::clone(&app), bounds, websockets };
        Ok(Self(Native::new(app, Arc::new(http), Arc::clone(&transport.panics), transport.threads.all())))
    }

    /// One of gRPC, for Envoys. A connection, and each request's head, may take `head_seconds` to begin; a body that
    /// comes in one message has at most `body_bytes`, and all messages that are put together `buffer_bytes`.
    #[staticmethod]
    #[pyo3(signature = (transport, *, requests, departures, head_seconds, body_bytes, buffer_bytes))]
    fn picker(
        transport: &Transport,
        requests: u64,
        departures: u64,
        head_seconds: f64,
        body_bytes: usize,
        buffer_bytes: usize,
    ) -> PyResult<Self> {
        let app = Telling::new(transport, requests, departures);
        let picker = Picker::new(Arc::<Telling>::clone(&app), body_bytes, buffer_bytes, seconds(head_seconds)?);
        Ok(Self(Native::new(app, Arc::new(picker), Arc::clone(&transport.panics), transport.threads.all())))
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

    /// From now on clients are told to go elsewhere.
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

impl Telling {
    fn new(transport: &Transport, requests: u64, departures: u64) -> Arc<Self> {
        Arc::new(Self { told: Arc::clone(&transport.told), requests, departures })
    }

    fn request(&self, asked: Asked, pick: Option<Arc<Pick>>) {
        let request = ClientRequest::new(asked, Arc::clone(&self.told), pick);
        self.told.push((self.requests, Box::new(|py| request.into_bound_py_any(py))));
    }
}

impl App for Telling {
    /// The bytes of a piece and whether it is the last one; a status where it is not taken, None where the client is gone.
    fn piece(&self, number: u64, piece: Piece) {
        let made: Payload = Box::new(|py| match piece {
            Piece::Data { data, last } => (PyBytes::new(py, &data), last).into_bound_py_any(py),
            Piece::Refused(status) => status.as_u16().into_bound_py_any(py),
            Piece::Broken => Ok(py.None().into_bound(py)),
        });
        self.told.push((number, made));
    }

    fn left(&self, key: u64) {
        self.told.push((self.departures, Box::new(move |py| key.into_bound_py_any(py))));
    }
}

impl HttpApp for Telling {
    fn asked(&self, asked: Asked) {
        self.request(asked, None);
    }
}

impl PickerApp for Telling {
    fn asked(&self, asked: Asked, pick: Arc<Pick>) {
        self.request(asked, Some(pick));
    }

    /// Whether the answer has ended.
    fn told(&self, number: u64, event: Event) {
        self.told.push((number, Box::new(move |py| (event == Event::Ended).into_bound_py_any(py))));
    }
}
