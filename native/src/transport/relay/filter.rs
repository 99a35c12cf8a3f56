//! Takes out of a chat's or completion's stream what only the gateway asked for, and reads its usage; other streams pass as
//! they are, and are counted. Pure.
//!
//! vLLM 0.32 writes the same members whether or not token ids are asked for, with null in place of ids: so ids are replaced
//! by null, and no other byte changes. Usage at the end of a stream is an event of its own (`"choices":[]`), and it has the
//! system fingerprint, which otherwise is in the last event of each choice: where usage is taken out, the fingerprint is
//! put back there. Events of errors pass unchanged. The tests for members rely on compact JSON, as engines write it.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::event::{DONE, Part, is_error, payload};
use super::event_counts::EventCounts;
use super::model_name::with_model;
use super::token_count::TokenCount;
use super::token_ids::{TokenIds, alone};
use super::usage::{Usage, usage_of};
use super::zero_counts::without_zeros;
use crate::ask::Endpoint;
use crate::json_members::{items, members, value_of};

/// Bound on events held back until the fingerprint is known.
const HELD_BYTES: usize = 4 * 1024 * 1024;
static NO_CHOICES: Part = Part::new(b"\"choices\":[]");
static FINISHED: Part = Part::new(b"\"finish_reason\":\"");
static USAGE: Part = Part::new(b"\"usage\":{");
const FINGERPRINT: &[u8] = b",\"system_fingerprint\":";
const NULL: &[u8] = b"null";

/// What is taken out of a stream.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// The event of usage.
    pub strip_usage: bool,
    /// Token ids.
    pub strip_ids: bool,
    /// The stream has one choice, whose last event always waits for the fingerprint: usage follows at once.
    pub single: bool,
    /// So many choices begin with their prompt, which may be among the ids.
    pub echoes: u64,
}

/// The filter of one stream.
#[derive(Debug, Default)]
pub struct StreamFilter {
    rules: Rules,
    /// The worker's last system fingerprint, as JSON, empty where it has none. While it is None the last event of a choice
    /// waits for it.
    fingerprint: Option<Vec<u8>>,
    /// The fingerprint was known, and is put in at once.
    signs: bool,
    /// Counts of cached tokens that are 0 are left out.
    omit_zeros: bool,
    /// The model as the client asked for it, as JSON; None where that is the engine's own name for it.
    model: Option<Arc<[u8]>>,
    /// Usage at the stream's end.
    usage: Option<Usage>,
    count: TokenCount,
    /// In place of both, for other streams than chats and completions, with what these speak.
    counts: Option<(Endpoint, EventCounts)>,
    /// Events so far.
    sequence: u64,
    begun: bool,
    held: Vec<Vec<u8>>,
    held_bytes: usize,
}

impl StreamFilter {
    #[must_use]
    pub fn new(rules: Rules, fingerprint: Option<Vec<u8>>) -> Self {
        let signs = !rules.single && fingerprint.is_some();
        Self { count: TokenCount::new(rules.echoes), rules, fingerprint, signs, ..Self::default() }
    }

    /// The filter of a stream of an endpoint whose events pass as they are.
    #[must_use]
    pub fn passing(endpoint: Endpoint) -> Self {
        Self { counts: Some((endpoint, EventCounts::default())), ..Self::default() }
    }

    pub fn omit_zeros(&mut self, omit: bool) {
        self.omit_zeros = omit;
    }

    /// Sets the name that a model has in the stream, as JSON.
    pub fn name_model(&mut self, name: &[u8]) {
        self.model = Some(name.into());
    }

    /// The worker's fingerprint, as JSON.
    #[must_use]
    pub fn fingerprint(&self) -> Option<&[u8]> {
        self.fingerprint.as_deref()
    }

    /// The usage that has come.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.counts.as_ref().map_or(self.usage, |(_, counts)| counts.usage)
    }

    /// The counts with which the stream has begun, where it begins with some.
    #[must_use]
    pub fn begun(&self) -> Option<Usage> {
        self.counts.as_ref().and_then(|(_, counts)| counts.begun())
    }

    /// Tokens so far: those produced, those of all prompts, those of the longest prompt.
    #[must_use]
    pub fn counted(&self) -> (u64, u64, u64) {
        let count = &self.count;
        let produced = self.counts.as_ref().map_or(count.produced, |(_, counts)| counts.produced);
        (produced, count.prompts, count.longest_prompt)
    }

    /// Events so far.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Adds to `out` what the client is to be sent for one whole event.
    pub fn feed(&mut self, event: &[u8], out: &mut Vec<u8>) {
        self.sequence += 1;
        match self.model.clone() {
            Some(name) => self.edited(&with_model(event, &name), out),
            None => self.edited(event, out),
        }
    }

    fn edited(&mut self, event: &[u8], out: &mut Vec<u8>) {
        if let Some((endpoint, counts)) = &mut self.counts {
            counts.note(event, *endpoint);
            return out.extend_from_slice(&if self.omit_zeros { without_zeros(event) } else { event.into() });
        }
        let data = &event[payload(event)];
        if data == DONE {
            self.end(out);
            out.extend_from_slice(event);
        } else if data.is_empty() || is_error(data) {
            self.pass(event, out);
        } else {
            self.begin(data);
            match usage_event(data) {
                Some(last) => self.last(event, last, out),
                None => self.delta(event, data, out),
            }
        }
    }

    /// Adds what is still held back to `out`, unchanged.
    pub fn end(&mut self, out: &mut Vec<u8>) {
        self.release(&[], out);
    }

    /// Leaves usage in a stream whose worker is set to send running usage to everybody.
    fn begin(&mut self, data: &[u8]) {
        if !self.begun {
            self.begun = true;
            self.rules.strip_usage &= !USAGE.is_in(data) || NO_CHOICES.is_in(data);
        }
    }

    fn delta(&mut self, event: &[u8], data: &[u8], out: &mut Vec<u8>) {
        let ids = TokenIds::read(data);
        self.count.note(data, ids.as_ref());
        let event = match ids {
            Some(_) if self.rules.strip_ids && alone(data) => return,
            Some(ids) if self.rules.strip_ids => Cow::Owned(ids.cut(event, payload(event).start)),
            _ => Cow::Borrowed(event),
        };
        if !(self.rules.strip_usage && FINISHED.is_in(data)) {
            self.pass(&event, out);
        } else if self.signs {
            sign(&event, self.fingerprint.as_deref().unwrap_or_default(), out);
        } else {
            self.hold(&event, out);
        }
    }

    fn pass(&mut self, event: &[u8], out: &mut Vec<u8>) {
        if self.held.is_empty() { out.extend_from_slice(event) } else { self.hold(event, out) }
    }

    fn hold(&mut self, event: &[u8], out: &mut Vec<u8>) {
        self.held.push(event.to_vec());
        self.held_bytes += event.len();
        if self.held_bytes > HELD_BYTES {
            self.release(&[], out);
        }
    }

    fn release(&mut self, fingerprint: &[u8], out: &mut Vec<u8>) {
        self.held_bytes = 0;
        for event in std::mem::take(&mut self.held) {
            sign(&event, if FINISHED.is_in(&event) { fingerprint } else { &[] }, out);
        }
    }

    fn last(&mut self, event: &[u8], last: Last, out: &mut Vec<u8>) {
        self.usage = last.usage;
        if self.rules.strip_usage {
            self.release(&last.fingerprint, out);
            self.fingerprint = Some(last.fingerprint);
        } else {
            let event = if self.omit_zeros { without_zeros(event) } else { Cow::Borrowed(event) };
            self.pass(&event, out);
        }
    }
}

/// A filter that is used by the relay of its stream and by Python, one after the other.
#[derive(Debug, Clone, Default)]
pub struct SharedFilter(Arc<Mutex<StreamFilter>>);

impl SharedFilter {
    #[must_use]
    pub fn new(filter: StreamFilter) -> Self {
        Self(Arc::new(Mutex::new(filter)))
    }

    pub fn lock(&self) -> MutexGuard<'_, StreamFilter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the client is to be sent for these events.
    pub fn feed<'a>(&self, events: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
        let (mut filter, mut out) = (self.lock(), Vec::new());
        events.for_each(|event| filter.feed(event, &mut out));
        out
    }
}

/// The event of usage, which is the last of a stream.
struct Last {
    usage: Option<Usage>,
    fingerprint: Vec<u8>,
}

/// Reads an event's JSON; None where it is no event of usage.
fn usage_event(data: &[u8]) -> Option<Last> {
    if !NO_CHOICES.is_in(data) {
        return None; // as nearly all
    }
    let top = members(data)?;
    let value = |name| value_of(data, &top, name).map(|value| &data[value]);
    value(b"usage").filter(|usage| *usage != NULL)?;
    let fingerprint = value(b"system_fingerprint").unwrap_or_default();
    let is_last = items(value(b"choices")?)?.is_empty();
    is_last.then(|| Last { usage: usage_of(data, Endpoint::Chat), fingerprint: fingerprint.to_vec() })
}

/// Adds an event to `out`, with a fingerprint as the last member, where there is one.
fn sign(event: &[u8], fingerprint: &[u8], out: &mut Vec<u8>) {
    let close = payload(event).end;
    if fingerprint.is_empty() || fingerprint == NULL || !event[..close].ends_with(b"}") {
        return out.extend_from_slice(event);
    }
    for part in [&event[..close - 1], FINGERPRINT, fingerprint, &event[close - 1..]] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELTA: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"token_ids\":[1]}]}\n\n";
    const CUT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"token_ids\":null}]}\n\n";
    const LAST: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    const SIGNED: &str =
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"system_fingerprint\":\"f\"}\n\n";
    const TAIL: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7},\"system_fingerprint\":\"f\"}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn rules(single: bool) -> Rules {
        Rules { strip_usage: true, strip_ids: true, single, ..Rules::default() }
    }

    fn fed(filter: &mut StreamFilter, event: &str) -> String {
        let mut out = Vec::new();
        filter.feed(event.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn usage_goes_and_its_fingerprint_goes_where_it_was() {
        let mut filter = StreamFilter::new(rules(true), Some(b"\"old\"".to_vec()));
        let sent: Vec<_> = [DELTA, LAST, TAIL, DONE].map(|event| fed(&mut filter, event)).into();
        assert_eq!(sent, [CUT, "", SIGNED, DONE]);
        let usage = Some(Usage { prompt: 7, ..Usage::default() });
        assert_eq!((filter.usage(), filter.fingerprint()), (usage, Some(b"\"f\"".as_slice())));
        assert_eq!((filter.counted(), filter.sequence()), ((1, 0, 0), 4));
    }

    #[test]
    fn of_several_choices_a_known_fingerprint_is_put_in_at_once_and_another_is_waited_for() {
        let mut knows = StreamFilter::new(rules(false), Some(b"\"f\"".to_vec()));
        assert_eq!((fed(&mut knows, LAST), fed(&mut knows, DELTA)), (SIGNED.into(), CUT.into()));
        let mut waits = StreamFilter::new(rules(false), None);
        assert_eq!(fed(&mut waits, LAST) + &fed(&mut waits, DELTA), "");
        assert_eq!(fed(&mut waits, TAIL), SIGNED.to_owned() + CUT);
    }

    #[test]
    fn a_model_has_the_name_that_was_asked_for_in_every_event() {
        let (mut filter, mut other) = (StreamFilter::new(rules(true), None), StreamFilter::passing(Endpoint::Messages));
        filter.name_model(b"\"asked\"");
        other.name_model(b"\"asked\"");
        let named =
            |event: &str, name: &str| event.replace("{\"choices\"", &format!("{{\"model\":\"{name}\",\"choices\""));
        for (event, expected) in [(DELTA, CUT), (LAST, ""), (TAIL, SIGNED)] {
            assert_eq!(fed(&mut filter, &named(event, "m")), named(expected, "asked"));
        }
        let start = "event: message_start\ndata: {\"message\":{\"model\":\"NAME\"}}\n\n";
        assert_eq!(fed(&mut other, &start.replace("NAME", "m")), start.replace("NAME", "asked"));
    }

    #[test]
    fn the_bytes_around_the_data_stay() {
        let mut filter = StreamFilter::new(rules(true), None);
        let odd = DELTA.replace("data: ", "event: x\ndata:").replace("\n\n", " \r\n\r\n");
        assert_eq!(fed(&mut filter, &odd), odd.replace("[1]", "null"));
        let last = LAST.replace("\n\n", "\r\n\r\n");
        assert_eq!(fed(&mut filter, &last), "");
        assert_eq!(fed(&mut filter, TAIL), SIGNED.replace("\n\n", "\r\n\r\n"));
    }
}
