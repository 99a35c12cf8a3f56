//! Counts the tokens of streams whose events pass as they are, those of messages and responses. Pure.

use super::event::{name, payload};
use super::usage::{Counts, Usage};
use crate::ask::Endpoint;

/// A delta that no token stands for.
const SIGNATURE: &[u8] = b"\"type\":\"signature_delta\"";

/// Tokens of one stream so far.
#[derive(Debug, Default)]
pub struct EventCounts {
    first: Option<Counts>,
    /// The usage that came at the stream's end.
    pub usage: Option<Usage>,
    /// Tokens so far, at least: the engine may have produced more than it has sent.
    pub produced: u64,
}

impl EventCounts {
    /// Notes one whole event.
    pub fn note(&mut self, event: &[u8], endpoint: Endpoint) {
        let counts = || Counts::of(&event[payload(event)], endpoint);
        match name(event) {
            b"content_block_delta" => {
                self.produced += u64::from(memchr::memmem::find(event, SIGNATURE).is_none());
            }
            b"message_start" => self.first = counts(),
            b"message_delta" => {
                let last = counts().map(|last| last.after(self.first.unwrap_or_default()));
                let last = last.filter(|counts| *counts != Counts::default());
                self.usage = last.map(Counts::usage).or(self.usage);
            }
            b"response.completed" | b"response.incomplete" | b"response.failed" => {
                self.usage = counts().map(Counts::usage).or(self.usage);
            }
            other => self.produced += u64::from(other.ends_with(b".delta")),
        }
    }

    /// The counts with which the stream has begun.
    #[must_use]
    pub fn begun(&self) -> Option<Usage> {
        self.first.map(Counts::usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_without_counts_is_no_usage() {
        let usage = |counts: &str| {
            let mut read = EventCounts::default();
            let event = format!("event: message_delta\ndata: {{\"usage\":{{{counts}}}}}\n\n");
            read.note(event.as_bytes(), Endpoint::Messages);
            read.usage
        };
        assert_eq!(usage("\"service_tier\":1"), None);
        assert_eq!(usage("\"output_tokens\":0"), Some(Usage { completion: Some(0), ..Usage::default() }));
    }
}
