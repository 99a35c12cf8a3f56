//! `WorkerClient` and `WorkerCall`: requests to workers, whose answers Python is told of.

use std::mem::replace;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyList, PyTuple};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::client_request::ClientRequest;
use super::kept_bytes::KeptBytes;
use super::stream_filter::StreamFilter;
use super::transport::{Payload, Told, Transport};
use crate::headers::to_client;
use crate::transport::client::{
    Answer, Bounds, Client, Cut, Failure, Framing, Head, Held, Opened, Request, Trust as Authorities, Unsupported,
    Verified, Waiting, hold as hold_request, open,
};
use crate::transport::panics::Panics;
use crate::transport::relay::{
    Beginning, Heard, Passes, Passing, Pause, RecordRoom, Relay, Relayed, Stop, Unkept, begins as relay_begins,
};

/// By which a worker says what it keeps of a conversation (`cachefleet_core.continuation`).
const CONVERSATION_HEADER: &str = "x-cachefleet-conversation";
const MAX_PLUGIN_HEADER_BYTES: usize = 1024;

/// The authorities (PEM) that workers are verified by. `ValueError` where there is none.
#[pyclass(frozen)]
pub struct Trust(Authorities);

#[pymethods]
impl Trust {
    #[new]
    fn new(authorities: &[u8]) -> PyResult<Self> {
        Authorities::new(authorities).map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

/// A client of workers.
#[pyclass(frozen)]
pub struct WorkerClient {
    client: Arc<Client>,
    transport: Py<Transport>,
}

#[pymethods]
impl WorkerClient {
    #[new]
    #[pyo3(signature = (transport, *, connect_seconds, idle_seconds, keep_alive_seconds, max_whole_bytes))]
    fn new(
        transport: Py<Transport>,
        connect_seconds: f64,
        idle_seconds: f64,
        keep_alive_seconds: f64,
        max_whole_bytes: usize,
    ) -> PyResult<Self> {
        let bounds = Bounds {
            connect: seconds(connect_seconds)?,
            idle: seconds(idle_seconds)?,
            keep_alive: seconds(keep_alive_seconds)?,
            whole: max_whole_bytes,
        };
        Ok(Self { client: Arc::new(Client::new(bounds)), transport })
    }

    /// Sends a request, on the thread of the client `beside`: a GET without a `body`. `trust` and `name` are those by
    /// which the certificate at an https URL is verified. What comes of it is told to `number`: (status, the headers
    /// that a client may see, what the worker keeps of the conversation, content codings, announced length, data, whether
    /// that is all, whether it is a stream of events, whether that is its ordinary beginning), or (failure, reason). Of a request that the
    /// worker is to `hold` (see `cachefleet_core.engine.held_requests`) it is (keys,), the document of its block keys,
    /// where it has no answer yet; `go` has it answered. With `gateway` another gateway is asked in place of a worker, whose
    /// own headers a client may see. `ConnectionError` for a URL, `ValueError` for a path or header that this client does
    /// not send.
    #[expect(clippy::needless_pass_by_value, clippy::too_many_arguments, reason = "as pyo3 gives them")]
    #[pyo3(signature = (
        number, url, path, headers, body, *, hold = false, beside = None, trust = None, name = "", gateway = false
    ))]
    fn send(
        &self,
        number: u64,
        url: &str,
        path: &str,
        headers: Vec<(PyBackedStr, PyBackedStr)>,
        body: Option<&[u8]>,
        hold: bool,
        beside: Option<&Bound<'_, ClientRequest>>,
        trust: Option<&Bound<'_, Trust>>,
        name: &str,
        gateway: bool,
    ) -> PyResult<WorkerCall> {
        let fields = headers.iter().map(|(name, value)| (&**name, &**value));
        let verified = verified(trust, name)?;
        let request = match body {
            None => Request::get(url, path, fields, verified),
            Some(body) if hold => Request::begun(url, path, fields, body, verified),
            Some(body) => Request::post(url, path, fields, Bytes::copy_from_slice(body), verified),
        };
        let request = request.map_err(unsupported)?;
        let (call, client) = (self.call(number, &request, beside), Arc::clone(&self.client));
        if hold {
            call.start(async move { held(hold_request(&client, request).await) });
        } else {
            call.start(async move { begun(open(&client, request).await, gateway) });
        }
        Ok(WorkerCall { call })
    }

    /// Closes connections that wait for a request.
    fn close(&self) {
        self.client.close();
    }
}

impl WorkerClient {
    fn call(&self, number: u64, request: &Request, beside: Option<&Bound<'_, ClientRequest>>) -> Arc<Call> {
        let transport = self.transport.get();
        Arc::new(Call {
            number,
            told: Arc::clone(&transport.told),
            panics: Arc::clone(&transport.panics),
            event_loop: beside.map_or_else(|| transport.threads.next().clone(), |client| client.get().event_loop()),
            heard: Heard::now(),
            pause: Pause::default(),
            cut: request.cut.clone(),
            state: Mutex::new(State::Over),
        })
    }
}

fn verified(trust: Option<&Bound<'_, Trust>>, name: &str) -> PyResult<Option<Verified>> {
    let verified = trust.map(|trust| trust.get().0.named(name)).transpose();
    verified.map_err(|error| PyConnectionError::new_err(error.to_string()))
}

fn unsupported(what: Unsupported) -> PyErr {
    match what {
        Unsupported::Url => {
            PyConnectionError::new_err("its URL is not one of http or https, host, port and plain path")
        }
        Unsupported::Path => PyValueError::new_err("the path is not plain"),
        Unsupported::Header => PyValueError::new_err("the headers are not plain, or have one that is set here"),
    }
}

/// A request that was sent. Its connection is cut where it is dropped before the answer has ended.
#[pyclass(frozen)]
pub struct WorkerCall {
    call: Arc<Call>,
}

#[pymethods]
impl WorkerCall {
    /// Has the worker answer the request that it holds, with late `members` of its body (a JSON object; none where
    /// empty): told is what is told of any answer. `RuntimeError` where it holds none.
    fn go(&self, members: Vec<u8>) -> PyResult<()> {
        let mut state = self.call.lock();
        match replace(&mut *state, State::Over) {
            State::Held(waiting) => {
                drop(state);
                self.call.start(async move { begun(waiting.go(&members).await, false) });
                Ok(())
            }
            other => {
                *state = other;
                Err(PyRuntimeError::new_err("no request is held"))
            }
        }
    }

    /// Reads on in a stream, to the end of an event or all that has come: (data, whether that is all) is told, or a
    /// failure. `RuntimeError` where it has ended, or is being read.
    #[pyo3(signature = (*, one = false))]
    fn more(&self, one: bool) -> PyResult<()> {
        self.call.read_on(move |mut answer| async move {
            let mut data = Vec::new();
            let read = if one { answer.events(&mut data, 1).await } else { answer.more(&mut data).await };
            match read {
                Ok(()) => {
                    let ended = answer.ended();
                    let payload: Payload = Box::new(move |py| (PyBytes::new(py, &data), ended).into_bound_py_any(py));
                    ((!ended).then_some(Rest::Answer(answer)), payload)
                }
                Err(failure) => (None, failed(failure)),
            }
        })
    }

    /// Relays the stream to `client` `through` its filter, until there is something for Python, which is told (events, the
    /// bytes after them, whether that is all, a failure or "", whether the client is gone, token ids, text, finish reason
    /// or "", whether the client's answer is whole, beginning, (record, events, digest, why there is no record or "")).
    ///
    /// First `piece` is sent, with the `opening` (status, headers) of an answer that has not begun. `begun` are the first
    /// bytes of an event, or the `first` events, an ordinary beginning. With `notes` only ordinary events are passed on, of
    /// which token ids, text, finish reason and what the beginning told (id, object, created, model, the prompt's ids as
    /// JSON; or None) are noted, and where none has come for some seconds there is nothing for Python but that; without, all
    /// but errors, the end, and what an engine gives up. With `kept` it is as without, but a stream's record is noted in
    /// place of being passed on, where `kept` has room for it and it is no longer than `max_record_bytes`, and the number
    /// and digest of the events that are. Where the end is near it is waited for `end_seconds`, and told with it; where
    /// that is an ordinary end, the client's answer is ended. `RuntimeError` as `more`, and where no answer has begun.
    #[expect(clippy::too_many_arguments, reason = "named, as Python gives them")]
    #[pyo3(signature = (
        client, through, opening, piece, begun, *, first, notes, kept = None, max_record_bytes = 0, max_event_bytes,
        send_seconds, end_seconds
    ))]
    fn relay(
        &self,
        client: &ClientRequest,
        through: &StreamFilter,
        opening: Option<(u16, Bound<'_, PyList>)>,
        piece: &[u8],
        begun: &[u8],
        first: bool,
        notes: bool,
        kept: Option<&Bound<'_, KeptBytes>>,
        max_record_bytes: usize,
        max_event_bytes: usize,
        send_seconds: f64,
        end_seconds: f64,
    ) -> PyResult<()> {
        let (send, end) = (seconds(send_seconds)?, seconds(end_seconds)?);
        let given = opening.map(|(status, headers)| client.open(status, &headers)).transpose()?;
        let reply = client.reply_sender().ok_or_else(|| PyRuntimeError::new_err("no answer has begun"))?;
        let make = if first { Passing::first } else { Passing::new };
        let passes = if notes { Passes::Ordinary } else { Passes::Most };
        let passing = make(begun.to_vec(), max_event_bytes, through.0.clone(), passes);
        let room = kept.map(|kept| RecordRoom::new(Arc::clone(&kept.get().0), max_record_bytes));
        let passing = match room {
            Some(room) => passing.recording(room),
            None => passing,
        };
        let (piece, relay_end) = (Bytes::copy_from_slice(piece), client.relay_end());
        let (heard, pause) = (self.call.heard.clone(), self.call.pause.clone());
        heard.note();
        self.call.read_on(move |answer| {
            let relay = Box::new(Relay { answer, reply, passing, send, end, heard, pause });
            async move {
                if !piece.is_empty() {
                    let _ = relay.reply.push(piece); // the relay notices a client that is gone
                }
                if let Some(answer) = given {
                    answer.give();
                }
                let left = relay.run().await;
                if left.stop == Stop::Whole {
                    relay_end.note();
                }
                relayed(left)
            }
        })
    }

    /// Seconds since something came of the worker.
    #[getter]
    fn silent_seconds(&self) -> f64 {
        self.call.heard.ago().as_secs_f64()
    }

    /// Has a relay, or else the next one, stop between two events, once it has passed on what comes next.
    fn pause(&self) {
        self.call.pause.make();
    }

    /// Cuts the connection of a stream that has begun: what reads or relays it is told that it is lost.
    fn cut(&self) {
        self.call.cut.make();
    }

    /// Cuts the connection, unless the answer has ended.
    fn cancel(&self) {
        self.call.cancel();
    }
}

impl Drop for WorkerCall {
    fn drop(&mut self) {
        self.call.cancel();
    }
}

/// What comes of one step of a call: what waits for the next one, and what Python is told.
type Step = (Option<Rest>, Payload);

/// What a call has between two steps.
enum Rest {
    Answer(Box<Answer>),
    Held(Box<Waiting>),
}

struct Call {
    number: u64,
    told: Arc<Told>,
    panics: Arc<Panics>,
    event_loop: Handle,
    heard: Heard,
    pause: Pause,
    cut: Cut,
    state: Mutex<State>,
}

enum State {
    /// A task has it, which can be ended as soon as it has begun.
    Busy(Option<AbortHandle>),
    Waiting(Box<Answer>),
    Held(Box<Waiting>),
    Over,
}

impl Call {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called by one thread alone, which holds no lock: the task may run to its end before this returns.
    fn start(self: &Arc<Self>, step: impl Future<Output = Step> + Send + 'static) {
        *self.lock() = State::Busy(None);
        let (call, step) = (Arc::clone(self), Box::pin(step)); // in the task it would have two places
        let task = self.event_loop.spawn(async move {
            let step = call.panics.caught(step).await;
            call.settle(step.unwrap_or_else(|| (None, failed(Failure::Lost))));
        });
        if let State::Busy(running) = &mut *self.lock() {
            *running = Some(task.abort_handle());
        }
    }

    fn read_on<F: Future<Output = Step> + Send + 'static>(
        self: &Arc<Self>,
        step: impl FnOnce(Box<Answer>) -> F,
    ) -> PyResult<()> {
        let answer = self.take_answer().ok_or_else(|| PyRuntimeError::new_err("no answer waits to be read"))?;
        self.start(step(answer));
        Ok(())
    }

    fn take_answer(&self) -> Option<Box<Answer>> {
        let mut state = self.lock();
        match replace(&mut *state, State::Over) {
            State::Waiting(answer) => Some(answer),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Tells what has come, unless nobody wants it any more.
    fn settle(&self, (rest, payload): Step) {
        let mut state = self.lock();
        let wanted = matches!(*state, State::Busy(_));
        if wanted {
            *state = match rest {
                Some(Rest::Answer(answer)) => State::Waiting(answer),
                Some(Rest::Held(waiting)) => State::Held(waiting),
                None => State::Over,
            };
        }
        drop(state); // or who is told would have to wait for it
        if wanted {
            self.told.push((self.number, payload));
        }
    }

    fn cancel(&self) {
        if let State::Busy(Some(task)) = replace(&mut *self.lock(), State::Over) {
            task.abort();
        }
    }
}

fn begun(opened: Result<Opened, Failure>, gateway: bool) -> Step {
    match opened {
        Ok(Opened::Whole(whole)) => (None, answered(whole.head, whole.body, true, gateway)),
        Ok(Opened::Stream(head, first, answer)) => {
            let ended = answer.ended();
            ((!ended).then_some(Rest::Answer(answer)), answered(head, first, ended, gateway))
        }
        Err(failure) => (None, failed(failure)),
    }
}

fn held(held: Result<Held, Failure>) -> Step {
    match held {
        Ok(Held::Keys(keys, waiting)) => {
            let payload: Payload = Box::new(move |py| (PyBytes::new(py, &keys),).into_bound_py_any(py));
            (Some(Rest::Held(waiting)), payload)
        }
        Ok(Held::Answered(opened)) => begun(Ok(opened), false),
        Err(failure) => (None, failed(failure)),
    }
}

/// What a relay has left, for Python.
fn relayed(left: Relayed) -> Step {
    let Relayed { stop, answer, events, rest, notes } = left;
    let failure = if let Stop::Failed(failure) = stop { failure.name() } else { "" };
    let (gone, whole, ended) = (stop == Stop::ClientGone, stop == Stop::Whole, answer.is_none());
    let payload: Payload = Box::new(move |py| {
        let events: Vec<_> = events.iter().map(|event| PyBytes::new(py, event)).collect();
        let rest = PyBytes::new(py, &rest);
        let beginning = notes.beginning.map(|told| {
            let Beginning { id, object, created, model, prompt } = told;
            (id, object, created, model, PyBytes::new(py, &prompt))
        });
        let (record, passed) = (PyBytes::new(py, &notes.trail.record), notes.trail.passed);
        let trail = (record, passed.events, passed.digest, notes.trail.unkept.map_or("", Unkept::code));
        (events, rest, ended, failure, gone, notes.ids, notes.text, notes.finish, whole, beginning, trail)
            .into_bound_py_any(py)
    });
    (answer.map(Rest::Answer), payload)
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// An answer, or its beginning, for Python.
fn answered(head: Head, data: Vec<u8>, ended: bool, gateway: bool) -> Payload {
    let (stream, length) = (head.is_stream(), if let Framing::Length(length) = head.framing { length } else { 0 });
    let begins = stream && !ended && relay_begins(&data);
    let coding = head.values("content-encoding").collect::<Vec<_>>().join(b",".as_slice());
    let kept = head.values(CONVERSATION_HEADER).next().unwrap_or_default();
    let kept = std::str::from_utf8(kept).ok().filter(|kept| kept.len() <= MAX_PLUGIN_HEADER_BYTES);
    let kept = kept.unwrap_or_default().to_owned();
    Box::new(move |py| {
        let fields = head.fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        let fields = to_client(fields, gateway).map(|(name, value)| (PyBytes::new(py, name), PyBytes::new(py, value)));
        let fields = fields.map(|field| field.into_pyobject(py)).collect::<PyResult<Vec<_>>>()?;
        let (fields, data, coding) = (PyTuple::new(py, fields)?, PyBytes::new(py, &data), PyBytes::new(py, &coding));
        (head.status, fields, kept, coding, length, data, ended, stream, begins).into_bound_py_any(py)
    })
}

fn failed(failure: Failure) -> Payload {
    Box::new(move |py| (failure.name(), failure.reason()).into_bound_py_any(py))
}
