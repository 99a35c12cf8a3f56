//! One request and its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::body::Incoming;
use hyper::header::TRANSFER_ENCODING;
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::answer::{Answer, AnswerBody, Over};
use super::connection::{Connection, Ends};
use super::request_body::{RequestBody, begin, feed};
use super::{Shared, Stage, websocket};

/// A request that the application is asked.
pub struct Asked {
    /// Its number on this server.
    pub key: u64,
    pub head: Parts,
    pub body: RequestBody,
    pub ends: Arc<Ends>,
    pub event_loop: Handle,
    pub answer: oneshot::Sender<Answer>,
    pub cut: Cut,
}

/// Cuts a request's connection.
pub struct Cut(Arc<Connection>);

impl Cut {
    /// Ends the connection at once.
    pub fn cut(&self) {
        self.0.progress.cut.notify_one();
    }
}

/// A client that waits for its answer; the application is told where it leaves before that has settled.
pub struct Presence {
    shared: Arc<Shared>,
    key: u64,
    settled: AtomicBool,
}

impl Presence {
    fn new(shared: Arc<Shared>) -> Self {
        let key = shared.key();
        Self { shared, key, settled: AtomicBool::new(false) }
    }

    /// The answer is whole.
    pub fn settle(&self) {
        self.settled.store(true, Ordering::Relaxed);
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if !*self.settled.get_mut() {
            self.shared.app.left(self.key);
        }
    }
}

/// Has a request answered.
///
/// # Errors
/// The client is gone.
pub async fn exchange(connection: Arc<Connection>, request: Request<Incoming>) -> hyper::Result<Response<AnswerBody>> {
    connection.progress.begun();
    let over = Over(Arc::clone(&connection));
    let answered = connection.shared.panics.caught(answered(&connection, request, over)).await;
    answered.unwrap_or_else(|| {
        let over = Over(Arc::clone(&connection));
        Ok(failed().response(over, None, true))
    })
}

async fn answered(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    over: Over,
) -> hyper::Result<Response<AnswerBody>> {
    let shared = &connection.shared;
    if let Some(path) = shared.websockets.as_deref().filter(|_| websocket::is_asked_for(&request)) {
        return Ok(websocket::pass(path, connection, request, over).await);
    }
    if request
        .headers()
        .get_all(TRANSFER_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Ok(Answer::text(StatusCode::BAD_REQUEST, "Invalid HTTP request received.").response(over, None, true));
    }
    let (head, body) = request.into_parts();
    let (body, mut rest) = begin(&head.headers, body).await?;
    let presence = Presence::new(Arc::clone(shared));
    let (answer, mut answering) = oneshot::channel();
    let (event_loop, cut) = (Handle::current(), Cut(Arc::clone(connection)));
    shared.app.asked(Asked {
        key: presence.key,
        head,
        body,
        ends: Arc::clone(&connection.ends),
        event_loop,
        answer,
        cut,
    });
    let answer = tokio::select! {
        biased;
        answer = &mut answering => answer,
        () = feed(&mut rest, &*shared.app) => unreachable!("feeding goes on for ever"),
    };
    let last = answer.is_err() || rest.is_some() || shared.stage() != Stage::Open;
    Ok(answer.unwrap_or_else(|_| failed()).response(over, Some(presence), last))
}

fn failed() -> Answer {
    Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
}
