//! `ClientRequest`: a request of a client, and the answer to it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{StatusCode, Version};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyBrokenPipeError, PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::picker::Pick;
use super::transport::Told;
use crate::picker::Pick as Waiting;
use crate::transport::reply_body::{ReplySender, reply_body};
use crate::transport::server::{Answer, AnswerKind, Asked, Cut, Ends, RequestBody};

/// A request of a client. It is answered by `answer`, or by `start`, `write` and `end`; one that is dropped unanswered
/// gets a 500, and where its answer has begun its connection is cut.
#[pyclass(frozen, module = "cachefleet_native")]
pub struct ClientRequest {
    key: u64,
    /// None once `scope` has given it to Python: it is a part of what the connection reads into.
    asked: Mutex<Option<(Parts, Bytes)>>,
    /// Asks for pieces of the body; None where it was all there.
    wants: Option<UnboundedSender<u64>>,
    ends: Arc<Ends>,
    secure: bool,
    event_loop: Handle,
    reply: Arc<Mutex<Progress>>,
    cut: Cut,
    told: Arc<Told>,
    /// Of a request that Envoy sends to a worker.
    pick: Option<Arc<Waiting>>,
}

/// How far the answer is.
enum Progress {
    Unanswered(oneshot::Sender<Answer>),
    Begun(ReplySender),
    /// A relay has sent all of it.
    Relayed,
    Ended,
}

/// An answer that is given once the relay of its body begins.
pub(super) struct Opening(oneshot::Sender<Answer>, Answer);

impl Opening {
    /// Gives it; nobody gets it where the client is gone.
    pub(super) fn give(self) {
        let _ = self.0.send(self.1);
    }
}

/// Notes that a relay has sent all of an answer.
pub(super) struct RelayEnd(Arc<Mutex<Progress>>);

impl RelayEnd {
    pub(super) fn note(&self) {
        let mut progress = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Progress::Begun(_) = *progress {
            *progress = Progress::Relayed;
        }
    }
}

impl ClientRequest {
    pub(super) fn new(asked: Asked, told: Arc<Told>, pick: Option<Arc<Waiting>>) -> Self {
        let Asked { key, head, body, ends, secure, event_loop, answer, cut } = asked;
        let (body, wants) = match body {
            RequestBody::Whole(body) => (body, None),
            RequestBody::Pieces(wants) => (Bytes::new(), Some(wants)),
        };
        let asked = Mutex::new(Some((head, body)));
        Self {
            key,
            asked,
            wants,
            ends,
            secure,
            event_loop,
            reply: Arc::new(Mutex::new(Progress::Unanswered(answer))),
            cut,
            told,
            pick,
        }
    }

    /// Writes the answer's body; None unless that has been started.
    pub(super) fn reply_sender(&self) -> Option<ReplySender> {
        match &*self.reply() {
            Progress::Begun(sender) => Some(sender.clone()),
            _ => None,
        }
    }

    /// Opens an answer, which is yet to be given; an error where there was one before.
    pub(super) fn open(&self, status: u16, headers: &Bound<'_, PyList>) -> PyResult<Opening> {
        let (sender, body) = reply_body();
        let answer = made(status, headers, AnswerKind::Stream(body))?;
        let mut progress = self.reply();
        match std::mem::replace(&mut *progress, Progress::Begun(sender)) {
            Progress::Unanswered(answering) => Ok(Opening(answering, answer)),
            other => {
                *progress = other;
                Err(PyRuntimeError::new_err("the request was answered before"))
            }
        }
    }

    /// For a relay that may send all of the answer.
    pub(super) fn relay_end(&self) -> RelayEnd {
        RelayEnd(Arc::clone(&self.reply))
    }

    /// The event loop of the client's connection.
    pub(super) fn event_loop(&self) -> Handle {
        self.event_loop.clone()
    }

    fn reply(&self) -> MutexGuard<'_, Progress> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the answer; an error where there was one before, or the client is gone.
    fn give(&self, answer: Answer, then: Progress) -> PyResult<()> {
        match std::mem::replace(&mut *self.reply(), then) {
            Progress::Unanswered(answering) => answering.send(answer).map_err(|_| gone()),
            _ => Err(PyRuntimeError::new_err("the request was answered before")),
        }
    }

    fn finish_now(&self) {
        let before = std::mem::replace(&mut *self.reply(), Progress::Ended);
        if matches!(before, Progress::Begun(sender) if !sender.is_full()) {
            self.cut.cut();
        }
    }
}

#[pymethods]
impl ClientRequest {
    /// Its number on its server.
    #[getter]
    fn key(&self) -> u64 {
        self.key
    }

    /// By which Envoy is told where to send it; None where it is the gateway's to send.
    #[getter]
    fn pick(&self) -> Option<Pick> {
        self.pick.clone().map(Pick)
    }

    /// Whether a relay has sent all of its answer.
    #[getter]
    fn relayed(&self) -> bool {
        matches!(*self.reply(), Progress::Relayed)
    }

    /// Asks for the next piece of the body, which is told under `number`.
    fn read(&self, number: u64) -> PyResult<()> {
        match &self.wants {
            Some(wants) => wants.send(number).map_err(|_| gone()),
            None => Err(PyRuntimeError::new_err("the body was there at once")),
        }
    }

    /// Members of the request's ASGI scope, and `cachefleet.body` where the whole body is there; `path` is not decoded.
    /// `RuntimeError` the second time.
    fn scope<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (head, body) = asked.ok_or_else(|| PyRuntimeError::new_err("the scope was given before"))?;
        let scope = PyDict::new(py);
        let (method, uri) = (head.method.as_str(), &head.uri);
        scope.set_item(intern!(py, "type"), intern!(py, "http"))?;
        scope.set_item(intern!(py, "http_version"), version(py, head.version))?;
        scope.set_item(intern!(py, "client"), (&self.ends.client.0, self.ends.client.1))?;
        scope.set_item(intern!(py, "server"), (&self.ends.server.0, self.ends.server.1))?;
        scope.set_item(intern!(py, "scheme"), if self.secure { intern!(py, "https") } else { intern!(py, "http") })?;
        scope.set_item(intern!(py, "root_path"), intern!(py, ""))?;
        scope.set_item(intern!(py, "method"), method_name(py, method))?;
        scope.set_item(intern!(py, "path"), uri.path())?;
        scope.set_item(intern!(py, "raw_path"), PyBytes::new(py, uri.path().as_bytes()))?;
        scope.set_item(intern!(py, "query_string"), PyBytes::new(py, uri.query().unwrap_or_default().as_bytes()))?;
        if self.wants.is_none() {
            scope.set_item(intern!(py, "cachefleet.body"), PyBytes::new(py, &body))?;
        }
        let pairs = head.headers.iter();
        let pairs = pairs.map(|(name, value)| {
            (PyBytes::new(py, name.as_str().as_bytes()), PyBytes::new(py, value.as_bytes())).into_bound_py_any(py)
        });
        scope.set_item(intern!(py, "headers"), PyList::new(py, pairs.collect::<PyResult<Vec<_>>>()?)?)?;
        Ok(scope)
    }

    /// Answers with a whole body.
    fn answer(&self, status: u16, headers: &Bound<'_, PyList>, body: &Bound<'_, PyBytes>) -> PyResult<()> {
        let body = AnswerKind::Whole(Bytes::copy_from_slice(body.as_bytes()));
        self.give(made(status, headers, body)?, Progress::Ended)
    }

    /// Begins an answer, with the first piece of its body; whether there is room for more now.
    fn start(&self, status: u16, headers: &Bound<'_, PyList>, piece: &Bound<'_, PyBytes>) -> PyResult<bool> {
        let (sender, body) = reply_body();
        let answer = made(status, headers, AnswerKind::Stream(body))?;
        let room = push(&sender, piece)?;
        self.give(answer, Progress::Begun(sender))?;
        Ok(room)
    }

    /// Writes a piece of the body; whether there is room for more now. `BrokenPipeError` where the client is gone.
    fn write(&self, piece: &Bound<'_, PyBytes>) -> PyResult<bool> {
        match &*self.reply() {
            Progress::Begun(sender) => push(sender, piece),
            _ => Err(PyRuntimeError::new_err("the answer has not begun, or has ended")),
        }
    }

    /// Writes the last piece of the body, none where a relay has. `BrokenPipeError` where the client is gone.
    fn end(&self, piece: &Bound<'_, PyBytes>) -> PyResult<()> {
        match std::mem::replace(&mut *self.reply(), Progress::Ended) {
            Progress::Relayed if piece.as_bytes().is_empty() => Ok(()),
            Progress::Begun(sender) => {
                sender.end();
                push(&sender, piece).map(drop)
            }
            _ => Err(PyRuntimeError::new_err("the answer has not begun, or has ended")),
        }
    }

    /// Tells under `number` once there is room for more: True, or False where the client is gone.
    fn room(&self, number: u64) -> PyResult<()> {
        let sender = self.reply_sender().ok_or_else(gone)?;
        let told = Arc::clone(&self.told);
        self.event_loop.spawn(async move {
            let there = sender.room().await.is_ok();
            told.push((number, Box::new(move |py| there.into_bound_py_any(py))));
        });
        Ok(())
    }

    /// Ends the request: unanswered, it gets a 500; an answer that has not ended is broken off.
    fn finish(&self) {
        self.finish_now();
    }
}

impl Drop for ClientRequest {
    fn drop(&mut self) {
        self.finish_now();
    }
}

fn gone() -> PyErr {
    PyBrokenPipeError::new_err("the client is gone")
}

fn push(sender: &ReplySender, piece: &Bound<'_, PyBytes>) -> PyResult<bool> {
    if piece.as_bytes().is_empty() {
        return if sender.is_gone() { Err(gone()) } else { Ok(true) };
    }
    sender.push(Bytes::copy_from_slice(piece.as_bytes())).map_err(|_| gone())
}

fn made(status: u16, headers: &Bound<'_, PyList>, body: AnswerKind) -> PyResult<Answer> {
    let status = StatusCode::from_u16(status).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let mut map = HeaderMap::with_capacity(headers.len() + 2); // the server adds its own
    for pair in headers {
        let (name, value): (Bound<'_, PyBytes>, Bound<'_, PyBytes>) = pair.extract()?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let value =
            HeaderValue::from_bytes(value.as_bytes()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        map.append(name, value);
    }
    Ok(Answer { status, headers: map, body })
}

fn version(py: Python<'_>, version: Version) -> &Bound<'_, PyString> {
    match version {
        Version::HTTP_10 => intern!(py, "1.0"),
        Version::HTTP_2 => intern!(py, "2"),
        _ => intern!(py, "1.1"),
    }
}

fn method_name<'py>(py: Python<'py>, method: &str) -> Bound<'py, PyString> {
    match method {
        "POST" => intern!(py, "POST").clone(),
        "GET" => intern!(py, "GET").clone(),
        other => PyString::new(py, other),
    }
}
