//! Bodies of requests: a small one at once, a larger one piece by piece, when the application asks for it.

use std::error::Error;
use std::future::pending;
use std::io::{self, ErrorKind};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::EXPECT;
use hyper::{HeaderMap, StatusCode};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::App;

/// A body of so many bytes is told of as a whole, where it is there soon.
const SMALL: u64 = 64 * 1024;
/// How long a small body is awaited before its request is told of without it.
const SOON: Duration = Duration::from_millis(50);

/// A piece of a body.
pub enum Piece {
    Data {
        data: Bytes,
        last: bool,
    },
    /// It is not taken: it is too long (413), there is no room for it (503), it has trailers or is malformed (400).
    Refused(StatusCode),
    /// The client is gone.
    Broken,
}

/// The body of a request, as the application gets it.
pub enum RequestBody {
    Whole(Bytes),
    /// Sends the number under which the next piece is told.
    Pieces(UnboundedSender<u64>),
}

/// What is to come of a body, after what has come.
pub struct Rest {
    begun: BytesMut,
    body: Incoming,
    wanted: UnboundedReceiver<u64>,
}

/// Reads a small body; what is to come of another.
///
/// # Errors
/// The client is gone, or sent what is no body.
pub async fn begin(headers: &HeaderMap, mut body: Incoming) -> hyper::Result<(RequestBody, Option<Rest>)> {
    if body.is_end_stream() {
        return Ok((RequestBody::Whole(Bytes::new()), None));
    }
    let mut begun = BytesMut::new();
    let small = body.size_hint().exact().is_none_or(|size| size <= SMALL) && !headers.contains_key(EXPECT);
    if small
        && let Ok(whole) = timeout(SOON, collect(&mut body, &mut begun)).await
        && let Some(whole) = whole?
    {
        return Ok((RequestBody::Whole(whole), None));
    }
    let (wants, wanted) = unbounded_channel();
    Ok((RequestBody::Pieces(wants), Some(Rest { begun, body, wanted })))
}

/// Whether what came is no body, as with a malformed chunk: its client is there, and may be told.
pub fn is_malformed(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|error| matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData))
}

/// The whole body; None where it is a large one after all.
async fn collect(body: &mut Incoming, begun: &mut BytesMut) -> hyper::Result<Option<Bytes>> {
    while begun.len() as u64 <= SMALL {
        let Some(frame) = body.frame().await else { return Ok(Some(std::mem::take(begun).freeze())) };
        let Ok(data) = frame?.into_data() else { continue }; // trailers are not passed on
        if begun.is_empty() && body.is_end_stream() {
            return Ok(Some(data));
        }
        begun.extend_from_slice(&data);
    }
    Ok(None)
}

/// Tells pieces when they are asked for; never returns.
pub async fn feed(rest: &mut Option<Rest>, app: &dyn App) {
    while let Some(feeding) = rest {
        let Some(number) = feeding.wanted.recv().await else { break };
        let piece = feeding.next().await;
        if !matches!(piece, Piece::Data { last: false, .. }) {
            *rest = None;
        }
        app.piece(number, piece);
    }
    pending::<()>().await;
}

impl Rest {
    async fn next(&mut self) -> Piece {
        if !self.begun.is_empty() {
            return Piece::Data { data: std::mem::take(&mut self.begun).freeze(), last: self.body.is_end_stream() };
        }
        loop {
            let data = match self.body.frame().await {
                Some(Ok(frame)) => frame.into_data(),
                Some(Err(error)) if is_malformed(&error) => return Piece::Refused(StatusCode::BAD_REQUEST),
                Some(Err(_)) => return Piece::Broken,
                None => return Piece::Data { data: Bytes::new(), last: true },
            };
            if let Ok(data) = data {
                return Piece::Data { data, last: self.body.is_end_stream() };
            }
        }
    }
}
