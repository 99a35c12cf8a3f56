//! What is learnt of a worker's answer while Envoy passes it on. Pure.

use std::mem::take;

use bytes::Bytes;

use crate::ask::Endpoint;
use crate::transport::relay::{SharedFilter, Splitter, Usage, usage_of};

/// Bytes of one event, and of a whole answer, that are looked at.
const EVENT_BYTES: usize = 4 * 1024 * 1024;
const WHOLE_BYTES: usize = 16 * 1024 * 1024;
/// How Envoy's own answer begins where it has reached no worker.
const UNREACHED: [&[u8]; 2] = [b"upstream connect error", b"no healthy upstream"];

/// The answer, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// 0 before its head.
    pub status: u16,
    /// The endpoint that has answered, where Envoy tells.
    pub served: Option<String>,
    /// Of a whole answer; that of a stream is its filter's.
    pub usage: Option<Usage>,
    /// It is Envoy's own, who has reached no worker.
    pub unreached: bool,
    /// All of it has come.
    pub finished: bool,
}

/// Watches one answer.
pub struct Watch {
    kind: Kind,
    filter: SharedFilter,
    endpoint: Option<Endpoint>,
}

enum Kind {
    Events(Splitter),
    Whole(Vec<u8>),
    Unknown,
}

impl Watch {
    /// Of an answer whose events go through a filter, to a request of this path.
    #[must_use]
    pub fn new(filter: SharedFilter, path: &str, status: u16, content_type: &[u8]) -> Self {
        let events = status == 200 && content_type.starts_with(b"text/event-stream");
        let kind = if events { Kind::Events(Splitter::new(EVENT_BYTES, Vec::new())) } else { Kind::Whole(Vec::new()) };
        Self { kind, filter, endpoint: Endpoint::from_path(path) }
    }

    /// Whether it is a stream of events.
    #[must_use]
    pub fn streams(&self) -> bool {
        matches!(self.kind, Kind::Events(_))
    }

    /// Takes a piece of the answer; what the client is sent for it.
    #[must_use]
    pub fn take(&mut self, piece: Bytes, last: bool) -> Bytes {
        match &mut self.kind {
            Kind::Events(splitter) => {
                splitter.bytes().extend_from_slice(&piece);
                let Some(passed) = events(splitter, &self.filter, last) else {
                    let rest = splitter.all().to_vec();
                    self.kind = Kind::Unknown;
                    return rest.into();
                };
                passed.into()
            }
            Kind::Whole(body) if body.len() + piece.len() <= WHOLE_BYTES => {
                body.extend_from_slice(&piece);
                piece
            }
            Kind::Whole(_) | Kind::Unknown => {
                self.kind = Kind::Unknown;
                piece
            }
        }
    }

    /// Notes what a whole answer tells, at its end.
    pub fn end(&mut self, known: &mut Known) {
        known.finished = true;
        if let Kind::Whole(body) = &mut self.kind {
            let body = take(body);
            known.unreached = known.status == 503 && UNREACHED.iter().any(|words| body.starts_with(words));
            known.usage = self.endpoint.and_then(|endpoint| usage_of(&body, endpoint));
        }
    }
}

/// What the client is sent for the whole events of a stream; None where one is too long.
fn events(splitter: &mut Splitter, filter: &SharedFilter, last: bool) -> Option<Vec<u8>> {
    let mut ranges = Vec::new();
    splitter.split(&mut ranges).ok()?;
    let mut passed = filter.feed(ranges.iter().map(|range| &splitter.all()[range.clone()]));
    splitter.forget(ranges.last().map_or(0, |range| range.end));
    if last {
        filter.lock().end(&mut passed);
        passed.extend_from_slice(splitter.all());
    }
    Some(passed)
}
