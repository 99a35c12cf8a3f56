//! One request and its answer.

use std::future::pending;
use std::sync::Arc;

use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Version};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::answer::{Answer, AnswerBody, Over};
use super::connection::{Connection, Ends};
use super::request_body::{RequestBody, begin, feed, is_malformed};
use super::streams::{Pace, StreamBody};
use super::{Presence, Stage, long_answer, websocket};

/// Header fields of a request of HTTP/2; hyper bounds those of HTTP/1.
const HEAD_FIELDS: usize = 100;

/// A request that the application is asked.
pub struct Asked {
    /// Its number on this server.
    pub key: u64,
    pub head: Parts,
    pub body: RequestBody,
    pub ends: Arc<Ends>,
    /// It came over TLS.
    pub secure: bool,
    pub event_loop: Handle,
    pub answer: oneshot::Sender<Answer>,
    pub cut: Cut,
}

/// Cuts off a client: its connection, or with HTTP/2 the request's stream.
pub enum Cut {
    Connection(Arc<Connection>),
    Stream(Arc<Pace>),
}

impl Cut {
    /// Cuts at once.
    pub fn cut(&self) {
        match self {
            Self::Connection(connection) => connection.progress.cut.notify_one(),
            Self::Stream(pace) => pace.cut(),
        }
    }
}

/// Has a request answered. Its head is noted before this returns: hyper then reads on, before it polls what is returned.
///
/// # Errors
/// The client is gone.
pub fn exchange(
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> impl Future<Output = hyper::Result<Response<AnswerBody>>> {
    let strict = connection.heads.parsed(request.body().size_hint().exact());
    async move {
        if !strict {
            return Ok(Answer::text(StatusCode::BAD_REQUEST, "").response(Over::new(&connection), None, true));
        }
        let cut = Cut::Connection(Arc::clone(&connection));
        caught(&connection, request, cut).await
    }
}

/// Has a request of HTTP/2 answered, in the task of its stream.
///
/// # Errors
/// The client is gone.
pub async fn exchange_on_stream(
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
) -> hyper::Result<Response<StreamBody<AnswerBody>>> {
    let pace = Pace::own();
    name_host(&mut request);
    let response = if request.headers().len() > HEAD_FIELDS {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        Answer::text(status, "Request Header Fields Too Large").response(Over::new(&connection), None, false)
    } else {
        caught(&connection, request, Cut::Stream(Arc::clone(&pace))).await?
    };
    Ok(response.map(|body| StreamBody::new(body, pace)))
}

/// Has a request of HTTP/2 say its host where one of HTTP/1 does.
fn name_host(request: &mut Request<Incoming>) {
    let authority = request.uri().authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    if let Some(Ok(host)) = authority {
        request.headers_mut().entry(HOST).or_insert(host);
    }
}

async fn caught(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    cut: Cut,
) -> hyper::Result<Response<AnswerBody>> {
    let over = Over::new(connection);
    let alone = matches!(cut, Cut::Connection(_));
    let answered = connection.shared.panics.caught(answered(connection, request, over, cut)).await;
    answered.unwrap_or_else(|| Ok(failed().response(Over::new(connection), None, alone)))
}

async fn answered(
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    over: Over,
    cut: Cut,
) -> hyper::Result<Response<AnswerBody>> {
    let (shared, alone) = (&connection.shared, matches!(cut, Cut::Connection(_)));
    if is_ambiguous(&request) {
        return Ok(Answer::text(StatusCode::BAD_REQUEST, "").response(over, None, true));
    }
    if let Some(to) = connection.http.websockets.as_ref().filter(|_| websocket::is_asked_for(&request)) {
        return Ok(websocket::pass(to, connection, request, over).await);
    }
    if request
        .headers()
        .get_all(TRANSFER_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Ok(invalid().response(over, None, true));
    }
    let (head, body) = request.into_parts();
    let (body, mut rest) = match begin(&head.headers, body).await {
        Err(error) if is_malformed(&error) => return Ok(invalid().response(over, None, true)),
        begun => begun?,
    };
    let respond = if head.method == Method::HEAD { Answer::head_alone } else { Answer::response };
    let may_be_long = alone && rest.is_none() && long_answer::may_be_asked(&head);
    let presence = Presence::new(Arc::clone(shared));
    let (answer, mut answering) = oneshot::channel();
    let event_loop = Handle::current();
    connection.http.app.asked(Asked {
        key: presence.key,
        head,
        body,
        ends: Arc::clone(&connection.ends),
        secure: connection.secure,
        event_loop,
        answer,
        cut,
    });
    let answer = tokio::select! {
        biased;
        answer = &mut answering => answer,
        () = feed(&mut rest, &*shared.app) => unreachable!("feeding goes on for ever"),
    };
    let last = alone && (answer.is_err() || rest.is_some() || shared.stage() != Stage::Open);
    let response = respond(answer.unwrap_or_else(|_| failed()), over, Some(presence), last);
    if may_be_long && long_answer::is_plain(&response) {
        *connection.handed() = Some(response);
        pending::<()>().await; // this ends with all that hyper holds for the connection
        unreachable!("nothing wakes it");
    }
    Ok(response)
}

/// Whether two servers might read it differently: one of HTTP/1.1 without a host, or with several (RFC 9112, 3.2), and a
/// WebSocket's handshake that announces a body.
fn is_ambiguous(request: &Request<Incoming>) -> bool {
    let headers = request.headers();
    let hosts = headers.get_all(HOST).iter().count();
    if hosts > 1 || hosts == 0 && request.version() == Version::HTTP_11 {
        return true;
    }
    let bodied = headers.contains_key(TRANSFER_ENCODING) || headers.get(CONTENT_LENGTH).is_some_and(|size| size != "0");
    bodied && websocket::is_asked_for(request)
}

fn invalid() -> Answer {
    Answer::text(StatusCode::BAD_REQUEST, "Invalid HTTP request received.")
}

fn failed() -> Answer {
    Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error")
}
