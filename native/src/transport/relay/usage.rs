//! A worker's own counts of tokens, in the terms of each API, read leniently: tenants' accounts rest on them. Pure.
//!
//! A count that is no integer is not known, and one below 0 is 0: whatever a worker writes, no account goes down by it.

use crate::ask::Endpoint;
use crate::json_members::{Member, members, value_of};

/// Where events of a stream have their usage.
const HOLDERS: [&[u8]; 2] = [b"response", b"message"];

/// The engine's counts of tokens for one answer.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub prompt: u64,
    pub completion: Option<u64>,
    /// Prompt tokens served from the prefix cache; None where the engine does not say.
    pub cached: Option<u64>,
}

/// Counts as an API names them; None for those that are not there.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    input: Option<u64>,
    pub output: Option<u64>,
    cached: Option<u64>,
    /// Tokens read from the cache and written to it, which Anthropic counts apart from the others.
    read: Option<u64>,
    written: Option<u64>,
}

impl Counts {
    /// Those of an answer's JSON, or of an event's; None where it has none.
    #[must_use]
    pub fn of(json: &[u8], endpoint: Endpoint) -> Option<Self> {
        let top = members(json)?;
        Self::in_member(json, &top, endpoint).or_else(|| {
            HOLDERS.iter().find_map(|name| {
                let holder = &json[value_of(json, &top, name)?];
                Self::in_member(holder, &members(holder)?, endpoint)
            })
        })
    }

    fn in_member(json: &[u8], of: &[Member], endpoint: Endpoint) -> Option<Self> {
        let usage = &json[value_of(json, of, b"usage")?];
        let counts = members(usage).filter(|counts| !counts.is_empty())?;
        let value = |name: &[u8]| value_of(usage, &counts, name).map(|value| &usage[value]);
        let read = |name| count(value(name)?);
        let within = |name| {
            let details = value(name)?;
            count(&details[value_of(details, &members(details)?, b"cached_tokens")?])
        };
        Some(match endpoint {
            Endpoint::Messages => Self {
                input: read(b"input_tokens"),
                output: read(b"output_tokens"),
                cached: None,
                read: read(b"cache_read_input_tokens"),
                written: read(b"cache_creation_input_tokens"),
            },
            Endpoint::Responses => Self {
                input: read(b"input_tokens"),
                output: read(b"output_tokens"),
                cached: within(b"input_tokens_details"),
                ..Self::default()
            },
            _ => Self {
                input: read(b"prompt_tokens"),
                output: read(b"completion_tokens"),
                cached: within(b"prompt_tokens_details"),
                ..Self::default()
            },
        })
    }

    /// These, and what is not among them of the `first` ones: Anthropic's own streams end with the output alone, vLLM's
    /// with all.
    #[must_use]
    pub fn after(self, first: Self) -> Self {
        if self.usage().prompt == 0 {
            return Self { output: self.output.or(first.output), ..first };
        }
        Self {
            input: self.input.or(first.input),
            output: self.output.or(first.output),
            cached: self.cached.or(first.cached),
            read: self.read.or(first.read),
            written: self.written.or(first.written),
        }
    }

    #[must_use]
    pub fn usage(self) -> Usage {
        let apart = self.read.unwrap_or(0).saturating_add(self.written.unwrap_or(0));
        let prompt = self.input.unwrap_or(0).saturating_add(apart);
        Usage { prompt, completion: self.output, cached: self.cached.or(self.read) }
    }
}

/// The usage of a whole answer; None where it has none.
#[must_use]
pub fn usage_of(body: &[u8], endpoint: Endpoint) -> Option<Usage> {
    if !endpoint.computes() {
        return None;
    }
    let top = members(body)?;
    Counts::in_member(body, &top, endpoint).map(Counts::usage)
}

/// A count of tokens; None for what is no integer.
fn count(value: &[u8]) -> Option<u64> {
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, digit: &u8| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    Some(if digits.len() < value.len() { 0 } else { digits.iter().fold(0, add) })
}
