//! Answers, as the application gives them and as the server sends them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};

use super::Presence;
use super::connection::Connection;
use crate::transport::reply_body::ReplyBody;

/// An answer.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: AnswerKind,
}

/// The body of an answer: all of it, or one that is still written.
pub enum AnswerKind {
    Whole(Bytes),
    Stream(ReplyBody),
}

/// What the server sends; the request is over when it is dropped.
pub struct AnswerBody {
    kind: Kind,
    _over: Over,
}

enum Kind {
    Whole(Option<Bytes>),
    Stream(ReplyBody, Option<Presence>, Left),
    Passed(Incoming),
}

/// Bytes of a stream that its client is yet to be sent; None where its head does not tell.
type Left = Option<u64>;

/// A request under way; notes at its end that it was answered.
pub struct Over(Arc<Connection>);

impl Over {
    /// A request has begun.
    pub fn new(connection: &Arc<Connection>) -> Self {
        connection.progress.begun();
        Self(Arc::clone(connection))
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        self.0.progress.answered();
    }
}

/// Why a body broke off: the connection is cut, so that the client does not take it for whole.
pub type Broken = Box<dyn std::error::Error + Send + Sync>;

impl Answer {
    /// An answer that is one line of text.
    #[must_use]
    pub fn text(status: StatusCode, text: &'static str) -> Self {
        let headers = HeaderMap::from_iter([(
            hyper::header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        )]);
        Self { status, headers, body: AnswerKind::Whole(Bytes::from_static(text.as_bytes())) }
    }

    /// The response to HEAD: the client is sent nothing of a stream.
    pub fn head_alone(self, over: Over, presence: Option<Presence>, last: bool) -> Response<AnswerBody> {
        self.responds(over, presence, last, |_| Some(0))
    }

    /// The response to send; `last` where the connection ends with it.
    pub fn response(self, over: Over, presence: Option<Presence>, last: bool) -> Response<AnswerBody> {
        self.responds(over, presence, last, Self::length)
    }

    fn responds(
        self,
        over: Over,
        mut presence: Option<Presence>,
        last: bool,
        length: impl Fn(&Self) -> Left,
    ) -> Response<AnswerBody> {
        let left = length(&self);
        let kind = match self.body {
            AnswerKind::Whole(body) => {
                presence.inspect(Presence::settle);
                Kind::Whole(Some(body).filter(|body| !body.is_empty()))
            }
            AnswerKind::Stream(body) => {
                settle_whole(&body, &mut presence, left);
                Kind::Stream(body, presence, left)
            }
        };
        let mut response = Response::new(AnswerBody { kind, _over: over });
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if self.status.canonical_reason().is_none() {
            response.extensions_mut().insert(ReasonPhrase::from_static(b""));
        }
        if last {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// How long its head says that it is.
    fn length(&self) -> Left {
        if self.status == StatusCode::NO_CONTENT {
            return Some(0);
        }
        self.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }
}

/// Settles a stream of which its client is sent no more.
fn settle_whole(body: &ReplyBody, presence: &mut Option<Presence>, left: Left) {
    if left == Some(0) {
        body.fill();
        presence.take().inspect(Presence::settle);
    }
}

impl AnswerBody {
    /// The body of another server's answer, passed on.
    pub fn passed(body: Incoming, over: Over) -> Self {
        Self { kind: Kind::Passed(body), _over: over }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut self.kind {
            Kind::Whole(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Kind::Passed(body) => Pin::new(body).poll_frame(context).map_err(Broken::from),
            Kind::Stream(.., Some(0)) => Poll::Ready(None),
            Kind::Stream(body, presence, left) => {
                let polled = Pin::new(&mut *body).poll_frame(context);
                match &polled {
                    Poll::Ready(None) => drop(presence.take().inspect(Presence::settle)),
                    Poll::Ready(Some(Ok(frame))) => {
                        let sent = frame.data_ref().map_or(0, |data| data.len() as u64);
                        *left = left.map(|left| left.saturating_sub(sent));
                        settle_whole(body, presence, *left);
                    }
                    _ => (),
                }
                polled.map_err(Broken::from)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Whole(body) => body.is_none(),
            Kind::Stream(_, _, left) => *left == Some(0),
            Kind::Passed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Kind::Stream(body, ..) => body.size_hint(),
            Kind::Passed(body) => body.size_hint(),
        }
    }
}
