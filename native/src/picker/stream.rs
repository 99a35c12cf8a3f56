//! One request as Envoy tells it, on a stream of its own: its head and body, then its answer.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::{Code, Status, Streaming};

use super::assembly::Held;
use super::heads::{changed, fields, metadata, request_head, served, subset, value};
use super::messages::{
    Asked as Message, CommonResponse, HeaderMutation, HeaderValue, HttpBody, HttpHeaders, HttpStatus,
    ImmediateResponse, Metadata, Mutation, Nothing, ProcessingRequest, ProcessingResponse, Response, Told, mode,
};
use super::watch::{Known, Watch};
use super::{Call, PickerApp};
use crate::transport::relay::SharedFilter;
use crate::transport::server::{Answer, AnswerKind, Asked, Cut, Pace, Piece, Presence, RequestBody};

/// A longer body is told piece by piece, as it is asked for; one as short that is not there so soon, too.
const SMALL: usize = 64 * 1024;
const SOON: Duration = Duration::from_millis(50);
/// Some Envoys refuse pieces of 64 KiB.
const PIECE: usize = 62_000;

/// Where a request goes.
pub struct Route {
    /// In the order in which they are to be tried, separated by commas.
    pub endpoints: String,
    /// For the worker.
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// Additional ones of the answer.
    pub answer_headers: Vec<(String, Bytes)>,
    pub filter: SharedFilter,
    /// Under which is told what comes of the answer.
    pub number: u64,
}

/// What comes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The first piece of a stream.
    Began,
    /// The end.
    Ended,
}

/// A request that waits for its route, then for its answer.
pub struct Pick {
    /// Endpoints to choose among; None for all.
    pub subset: Option<Vec<String>>,
    route: Mutex<Option<oneshot::Sender<Route>>>,
    known: Mutex<Known>,
}

impl Pick {
    /// Sends the request on its way; false where it was answered, or nobody waits any more.
    pub fn route(&self, route: Route) -> bool {
        let waiting = self.route.lock().unwrap_or_else(PoisonError::into_inner).take();
        waiting.is_some_and(|waiting| waiting.send(route).is_ok())
    }

    /// What is known of its answer.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request was neither answered nor sent to a worker: what Envoy is told, where it has not ended the stream itself. Of
/// one that just ends it would send the request on as the client made it.
pub struct Gone(pub Status);

impl Gone {
    /// The status of an answer that says why a message is not taken; None where the stream has another end.
    fn refusal(&self) -> Option<StatusCode> {
        match self.0.code() {
            Code::OutOfRange => Some(StatusCode::PAYLOAD_TOO_LARGE),
            Code::ResourceExhausted => Some(StatusCode::SERVICE_UNAVAILABLE),
            Code::InvalidArgument => Some(StatusCode::BAD_REQUEST),
            _ => None,
        }
    }
}

fn gone() -> Gone {
    Gone(Status::aborted("the request was not decided on"))
}

/// The two directions of a stream.
pub struct Stream {
    from: Streaming<ProcessingRequest>,
    to: Sender<Result<ProcessingResponse, Status>>,
    held: Arc<Held>,
    /// Envoy waits for an answer to the request's trailers.
    trailers: bool,
}

impl Stream {
    #[must_use]
    pub fn new(
        from: Streaming<ProcessingRequest>,
        to: Sender<Result<ProcessingResponse, Status>>,
        held: Arc<Held>,
    ) -> Self {
        Self { from, to, held, trailers: false }
    }

    async fn next(&mut self) -> Result<ProcessingRequest, Gone> {
        let message = self.from.message().await.map_err(Gone)?.ok_or_else(gone)?;
        self.trailers |= matches!(message.request, Some(Message::RequestTrailers(_)));
        Ok(message)
    }

    async fn send(&self, response: impl Into<ProcessingResponse>) -> Result<(), Gone> {
        self.to.send(Ok(response.into())).await.map_err(|_| gone())
    }

    /// Passes the request's trailers on as they are, where they have come; last of all of the request.
    async fn send_trailers(&mut self) -> Result<(), Gone> {
        if std::mem::take(&mut self.trailers) {
            self.send(Told::RequestTrailers(Nothing {})).await?;
        }
        Ok(())
    }

    async fn answer(&self, answer: Answer) -> Result<(), Gone> {
        let body = match answer.body {
            AnswerKind::Whole(body) => body,
            AnswerKind::Stream(body) => body.collect().await.map_err(|_| gone())?.to_bytes(),
        };
        let mut headers = HeaderMutation::default();
        for (name, value) in &answer.headers {
            headers.set(name.as_str(), Bytes::copy_from_slice(value.as_bytes()));
        }
        let status = Some(HttpStatus { code: i32::from(answer.status.as_u16()) });
        self.send(Told::Immediate(ImmediateResponse { status, headers: Some(headers), body })).await
    }
}

/// What comes of a request before anything is decided.
struct Request {
    headers: Vec<HeaderValue>,
    metadata: Option<Metadata>,
    /// Whether all of it is sent back, and what is not is lost; else a body comes whole.
    duplex: bool,
    answer_duplex: bool,
    /// It has no body.
    bare: bool,
}

/// What comes of a body after what has come.
struct Rest {
    begun: Bytes,
    wanted: UnboundedReceiver<u64>,
    /// Nothing more of it is read.
    refused: Option<StatusCode>,
    /// It comes whole, once Envoy has an answer to the head.
    whole: bool,
}

/// Has one request answered or routed, and follows its answer.
///
/// # Errors
/// It was neither; Envoy is to be told.
pub async fn follow(call: &Call, mut stream: Stream) -> Result<(), Gone> {
    let app = &*call.picker.app;
    let late = |_| Gone(Status::deadline_exceeded("the head of the request did not come"));
    let Some(request) = timeout(call.picker.head, begin(&mut stream)).await.map_err(late)?? else { return Ok(()) };
    let Some(head) = request_head(&request.headers) else {
        return stream.answer(Answer::text(StatusCode::BAD_REQUEST, "")).await;
    };
    let path = head.uri.path().to_owned();
    let (body, mut rest) = body(&mut stream, &request).await?;
    let (answer, mut answering) = oneshot::channel();
    let (route, mut routing) = oneshot::channel();
    let subset = subset(request.metadata.as_ref());
    let pick = Arc::new(Pick { subset, route: Mutex::new(Some(route)), known: Mutex::default() });
    let (presence, pace) = (Presence::new(Arc::clone(&call.shared)), Arc::<Pace>::default());
    let (event_loop, cut) = (Handle::current(), Cut::Stream(Arc::clone(&pace)));
    let (key, ends, secure) = (presence.key, Arc::clone(&call.ends), call.secure);
    app.asked(Asked { key, head, body, ends, secure, event_loop, answer, cut }, Arc::clone(&pick));
    let mut open = true;
    let route = loop {
        tokio::select! {
            biased;
            answer = &mut answering => {
                presence.settle();
                let failed = || Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error");
                return stream.answer(answer.unwrap_or_else(|_| failed())).await;
            }
            route = &mut routing, if open => match route {
                Ok(route) => break route,
                Err(_) => open = false,
            },
            gone = feed(&mut rest, &mut stream, app) => return Err(gone),
            () = pace.was_cut() => return Err(gone()),
        }
    };
    stream.held.release();
    let (number, filter) = (route.number, route.filter.clone());
    let answer_headers = send(&mut stream, &request, route).await?;
    let watching = watched(&mut stream, &pick, filter, answer_headers, &path, request.answer_duplex, || {
        app.told(number, Event::Began);
    });
    let ended = tokio::select! {
        biased;
        watched = watching => watched.is_ok(),
        () = pace.was_cut() => false, // what is left of it goes on without us
    };
    if ended {
        presence.settle();
        app.told(number, Event::Ended);
    }
    Ok(())
}

/// Reads the head of a request; None where Envoy is set so that nothing could be decided.
async fn begin(stream: &mut Stream) -> Result<Option<Request>, Gone> {
    let ProcessingRequest { metadata_context, protocol_config, request } = stream.next().await?;
    let Some(Message::RequestHeaders(told)) = request else { return Err(gone()) };
    let modes = protocol_config.unwrap_or_default();
    let known = protocol_config.is_some();
    let asked = if known { modes.request_body_mode } else { mode::FULL_DUPLEX_STREAMED };
    let bare = told.end_of_stream;
    if !bare && asked != mode::FULL_DUPLEX_STREAMED && asked != mode::BUFFERED {
        let words = "The picker needs request_body_mode FULL_DUPLEX_STREAMED or BUFFERED.";
        stream.answer(Answer::text(StatusCode::INTERNAL_SERVER_ERROR, words)).await?;
        return Ok(None);
    }
    let duplex = asked == mode::FULL_DUPLEX_STREAMED;
    let answer_duplex = !known || modes.response_body_mode == mode::FULL_DUPLEX_STREAMED;
    Ok(Some(Request { headers: fields(told), metadata: metadata_context, duplex, answer_duplex, bare }))
}

/// A body that is short and comes unasked; of another what is to come, once the application has asked for it.
async fn body(stream: &mut Stream, request: &Request) -> Result<(RequestBody, Option<Rest>), Gone> {
    if request.bare {
        return Ok((RequestBody::Whole(Bytes::new()), None));
    }
    let (mut begun, mut refused) = (BytesMut::new(), None);
    if request.duplex {
        match timeout(SOON, short(stream, &mut begun)).await {
            Ok(Ok(Some(whole))) => return Ok((RequestBody::Whole(whole), None)),
            Ok(Err(gone)) => refused = Some(gone.refusal().ok_or(gone)?),
            Ok(Ok(None)) | Err(_) => {}
        }
    }
    let (wants, wanted) = unbounded_channel();
    let rest = Rest { begun: begun.freeze(), wanted, refused, whole: !request.duplex };
    Ok((RequestBody::Pieces(wants), Some(rest)))
}

/// The whole body; None where it is a longer one.
async fn short(stream: &mut Stream, begun: &mut BytesMut) -> Result<Option<Bytes>, Gone> {
    while begun.len() <= SMALL {
        let HttpBody { body, end_of_stream } = piece(stream).await?;
        if begun.is_empty() && end_of_stream {
            return Ok(Some(body));
        }
        begun.extend_from_slice(&body);
        if end_of_stream {
            return Ok(Some(std::mem::take(begun).freeze()));
        }
    }
    Ok(None)
}

/// The next piece of a request's body. One that ends with trailers is refused: where Envoy would retry it sends what was
/// put before them twice (1.40).
async fn piece(stream: &mut Stream) -> Result<HttpBody, Gone> {
    match stream.next().await?.request {
        Some(Message::RequestBody(body)) => Ok(body),
        Some(Message::RequestTrailers(_)) => Err(Gone(Status::invalid_argument("trailers"))),
        _ => Err(gone()),
    }
}

impl Rest {
    async fn next(&mut self, stream: &mut Stream) -> Result<Piece, Gone> {
        if !self.begun.is_empty() {
            return Ok(Piece::Data { data: std::mem::take(&mut self.begun), last: false });
        }
        if self.whole && self.refused.is_none() {
            stream.send(Told::RequestHeaders(Response::default())).await?;
        }
        if self.refused.is_none() {
            match piece(stream).await {
                Ok(HttpBody { body: data, end_of_stream }) => {
                    return Ok(Piece::Data { data, last: end_of_stream || self.whole });
                }
                Err(gone) => self.refused = Some(gone.refusal().ok_or(gone)?),
            }
        }
        Ok(self.refused.map_or(Piece::Broken, Piece::Refused))
    }
}

/// Tells pieces of a body when they are asked for; returns why no more comes.
async fn feed(rest: &mut Option<Rest>, stream: &mut Stream, app: &dyn PickerApp) -> Gone {
    while let Some(feeding) = rest {
        let Some(number) = feeding.wanted.recv().await else { return pending().await };
        let piece = match feeding.next(stream).await {
            Ok(piece) => piece,
            Err(gone) => {
                app.piece(number, Piece::Broken);
                return gone;
            }
        };
        if matches!(piece, Piece::Data { last: true, .. }) {
            *rest = None;
        }
        app.piece(number, piece);
    }
    while stream.next().await.is_ok() {} // trailers of a body that came whole
    gone()
}

/// Sends a request on its way; the headers of its answer.
async fn send(stream: &mut Stream, request: &Request, route: Route) -> Result<HeaderMutation, Gone> {
    let Route { endpoints, headers, body, answer_headers, .. } = route;
    let mut mutation = changed(&request.headers, &headers, &endpoints);
    let dynamic_metadata = Some(metadata(&endpoints));
    if !request.bare {
        mutation.set("content-length", body.len().to_string().into());
    }
    if request.bare || request.duplex {
        let header_mutation = Some(mutation);
        let common = CommonResponse { header_mutation, clear_route_cache: true, ..CommonResponse::default() };
        let response = Some(Told::RequestHeaders(Response::of(common)));
        stream.send(ProcessingResponse { dynamic_metadata, response }).await?;
        if !request.bare {
            pieces(stream, body, true, Told::RequestBody).await?;
        }
    } else {
        let body_mutation = Some(Mutation::Whole(body).into());
        let common = CommonResponse { header_mutation: Some(mutation), body_mutation, clear_route_cache: true };
        let response = Some(Told::RequestBody(Response::of(common)));
        stream.send(ProcessingResponse { dynamic_metadata, response }).await?;
    }
    stream.send_trailers().await?;
    let mut mutation = HeaderMutation::default();
    for (name, value) in answer_headers {
        mutation.set(&name, value);
    }
    Ok(mutation)
}

/// Sends a body back in pieces that every Envoy takes.
async fn pieces(stream: &Stream, mut body: Bytes, last: bool, told: fn(Response) -> Told) -> Result<(), Gone> {
    loop {
        let piece = body.split_to(body.len().min(PIECE));
        let end_of_stream = last && body.is_empty();
        stream.send(told(Response::body(Mutation::Piece(HttpBody { body: piece, end_of_stream })))).await?;
        if body.is_empty() {
            return Ok(());
        }
    }
}

/// Follows an answer to its end; `on_stream` is called with the first piece of a stream.
async fn watched(
    stream: &mut Stream,
    pick: &Pick,
    filter: SharedFilter,
    headers: HeaderMutation,
    path: &str,
    duplex: bool,
    on_stream: impl Fn(),
) -> Result<(), Gone> {
    let (mut headers, mut watch, mut begun) = (Some(headers), None, false);
    loop {
        // Where no bodies are sent the stream ends after the head.
        let Ok(ProcessingRequest { metadata_context, request, .. }) = stream.next().await else {
            return if pick.known().status == 0 || begun { Err(gone()) } else { Ok(()) };
        };
        let ended = match request {
            Some(Message::ResponseHeaders(told)) => {
                let last = told.end_of_stream;
                watch = Some(head(pick, told, metadata_context.as_ref(), &filter, path));
                let header_mutation = headers.take();
                let response = Response::of(CommonResponse { header_mutation, ..CommonResponse::default() });
                stream.send(Told::ResponseHeaders(response)).await?;
                last
            }
            Some(Message::ResponseBody(HttpBody { body, end_of_stream: last })) => {
                if !begun && !body.is_empty() && watch.as_ref().is_some_and(Watch::streams) {
                    on_stream();
                }
                begun = true;
                passed(stream, watch.as_mut(), body, last, duplex).await?;
                last
            }
            Some(Message::ResponseTrailers(_)) => {
                stream.send(Told::ResponseTrailers(Nothing {})).await?;
                true
            }
            _ => {
                stream.send_trailers().await?; // of a request whose body came whole
                false
            }
        };
        if ended {
            if let Some(watch) = &mut watch {
                watch.end(&mut pick.known());
            }
            return Ok(());
        }
    }
}

/// Notes the head of an answer.
fn head(pick: &Pick, told: HttpHeaders, metadata: Option<&Metadata>, filter: &SharedFilter, path: &str) -> Watch {
    let fields = fields(told);
    let text = value(&fields, ":status").and_then(|status| std::str::from_utf8(status).ok());
    let status = text.and_then(|status| status.parse().ok()).unwrap_or(502);
    let mut known = pick.known();
    known.status = status;
    known.served = served(metadata);
    Watch::new(filter.clone(), path, status, value(&fields, "content-type").unwrap_or_default())
}

/// Sends a piece of an answer on, without what the client has not asked for.
async fn passed(stream: &Stream, watch: Option<&mut Watch>, body: Bytes, last: bool, duplex: bool) -> Result<(), Gone> {
    let passed = watch.map_or_else(|| body.clone(), |watch| watch.take(body.clone(), last));
    if duplex {
        return pieces(stream, passed, last, Told::ResponseBody).await;
    }
    let same = passed == body;
    let response = if same { Response::default() } else { Response::body(Mutation::Whole(passed)) };
    stream.send(Told::ResponseBody(response)).await
}
