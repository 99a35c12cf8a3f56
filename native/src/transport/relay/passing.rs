//! Decides what of a worker's stream is passed on through its filter, and what is Python's to read. Pure.

use std::ops::Range;

use super::chunk::{Beginning, Chunk};
use super::ending;
use super::event::{Part, is_last, may_be_error};
use super::filter::SharedFilter;
use super::splitter::{Splitter, TooLarge};
use super::trail::{RecordRoom, Trail, is_part};

/// How the end of a choice shows itself.
static FINISHED: Part = Part::new(b"\"finish_reason\":\"");
/// How an engine gives an answer up.
static ABORTED: Part = Part::new(b"\"finish_reason\":\"abort\"");

/// Whether these are whole events that make an ordinary beginning of a stream, in the last of which something was produced.
/// Parts of a record may be among them.
#[must_use]
pub fn begins(data: &[u8]) -> bool {
    let (mut splitter, mut events, mut chunk) =
        (Splitter::new(data.len(), data.to_vec()), Vec::new(), Chunk::default());
    splitter.split(&mut events).is_ok()
        && events.last().is_some_and(|last| last.end == data.len())
        && events
            .iter()
            .map(|event| &data[event.clone()])
            .all(|event| is_part(event) || chunk.read_first(event).is_some())
        && !(chunk.ids.is_empty() && chunk.text.is_empty())
}

/// Which events are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Ordinary ones, of which ids and text are noted: another worker may have to resume the answer.
    Ordinary,
    /// As `Most`, but for the parts of a record, which are noted: another worker may have to make the stream again.
    Recorded,
    /// All but errors, the end, and what an engine gives up.
    Most,
}

/// What the events that were passed on have added to an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Notes {
    pub ids: Vec<u32>,
    pub text: String,
    /// Why its choice has ended; "" where it has not.
    pub finish: &'static str,
    /// What the first events told, where they were among them.
    pub beginning: Option<Beginning>,
    pub trail: Trail,
}

/// What comes of the bytes of one read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// For the client.
    pub passed: Vec<u8>,
    /// Whole events from the first that is not passed on.
    pub handed: Vec<Vec<u8>>,
}

/// A stream from the middle of which events are passed on.
pub struct Passing {
    splitter: Splitter,
    filter: SharedFilter,
    passes: Passes,
    /// Its first events are yet to be taken, and are there.
    first: bool,
    notes: Notes,
    /// What its record may take; None where none is noted.
    room: Option<RecordRoom>,
    chunk: Chunk,
    events: Vec<Range<usize>>,
}

impl Passing {
    /// Begins with the first bytes of an event.
    #[must_use]
    pub fn new(begun: Vec<u8>, limit: usize, filter: SharedFilter, passes: Passes) -> Self {
        let (splitter, notes, chunk) = (Splitter::new(limit, begun), Notes::default(), Chunk::default());
        Self { splitter, filter, passes, first: false, notes, room: None, chunk, events: Vec::new() }
    }

    /// With a record that takes no more than there is `room` for.
    #[must_use]
    pub fn recording(self, room: RecordRoom) -> Self {
        Self { passes: Passes::Recorded, room: Some(room), ..self }
    }

    /// Begins with a stream's first events (see `begins`), which are to be taken at once.
    #[must_use]
    pub fn first(events: Vec<u8>, limit: usize, filter: SharedFilter, passes: Passes) -> Self {
        Self { first: true, ..Self::new(events, limit, filter, passes) }
    }

    /// Whether its first events are to be taken at once.
    #[must_use]
    pub fn has_first(&self) -> bool {
        self.first
    }

    /// Whether it notes what comes, so that another worker can go on.
    #[must_use]
    pub fn notes(&self) -> bool {
        self.passes != Passes::Most
    }

    /// Where what was read is to be added.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        self.splitter.bytes()
    }

    /// The bytes after the last whole event, and the notes.
    #[must_use]
    pub fn into_rest(mut self) -> (Vec<u8>, Notes) {
        (std::mem::take(self.splitter.bytes()), self.notes)
    }

    /// Takes the events that are whole now. An error among them may void those that came with it: none is passed.
    ///
    /// # Errors
    /// An event is longer than the limit.
    pub fn take(&mut self) -> Result<Taken, TooLarge> {
        self.events.clear();
        self.splitter.split(&mut self.events)?;
        let Some(end) = self.events.last().map(|event| event.end) else { return Ok(Taken::default()) };
        let before = (self.notes.ids.len(), self.notes.text.len());
        let trail = self.notes.trail.mark();
        let mut passed = (0..self.events.len()).find(|number| !self.read(*number)).unwrap_or(self.events.len());
        if std::mem::take(&mut self.first) && self.passes == Passes::Ordinary && passed > 0 {
            self.notes.beginning = Some(std::mem::take(&mut self.chunk.beginning));
        }
        let all = self.splitter.all();
        if self.events[passed..].iter().any(|event| may_be_error(&all[event.clone()])) {
            passed = 0;
            self.notes.ids.truncate(before.0);
            self.notes.text.truncate(before.1);
            self.notes.trail.go_back(trail);
        }
        if let Some(room) = &mut self.room {
            self.notes.trail.keep_within(room);
        }
        let (passed, handed) = self.events.split_at(passed);
        let recorded = self.passes == Passes::Recorded;
        let events = passed.iter().map(|event| &all[event.clone()]);
        let taken = Taken {
            passed: self.filter.feed(events.filter(|event| !(recorded && is_part(event)))),
            handed: handed.iter().map(|event| all[event.clone()].to_vec()).collect(),
        };
        self.splitter.forget(end);
        Ok(taken)
    }

    /// Adds the events that are whole now to `handed`, but for those from an error on, whose bytes are returned with all
    /// that follows them.
    ///
    /// # Errors
    /// An event is longer than the limit.
    pub fn hand(&mut self, handed: &mut Vec<Vec<u8>>) -> Result<Vec<u8>, TooLarge> {
        self.events.clear();
        self.splitter.split(&mut self.events)?;
        let mut end = 0;
        for event in &self.events {
            let bytes = &self.splitter.all()[event.clone()];
            if may_be_error(bytes) {
                let left = self.splitter.all()[event.start..].to_vec();
                self.splitter.forget(self.splitter.all().len());
                return Ok(left);
            }
            handed.push(bytes.to_vec());
            end = event.end;
        }
        self.splitter.forget(end);
        Ok(Vec::new())
    }

    /// Whether the end of the stream follows these events at once.
    #[must_use]
    pub fn ends(&self, events: &[Vec<u8>]) -> bool {
        events.iter().any(|event| match self.passes {
            Passes::Ordinary => FINISHED.is_in(event),
            Passes::Recorded | Passes::Most => is_last(event) && !may_be_error(event),
        })
    }

    /// What the client is sent of a stream's last events, where they are an ordinary end and nothing follows; notes what
    /// they add.
    pub fn end(&mut self, events: &[Vec<u8>]) -> Option<Vec<u8>> {
        let ordinary = match self.passes {
            Passes::Ordinary => ending::is_ordinary(events, &mut self.chunk),
            Passes::Recorded | Passes::Most => events.iter().all(|event| is_last(event) && !may_be_error(event)),
        };
        if !ordinary || !self.splitter.all().is_empty() {
            return None;
        }
        if self.passes == Passes::Ordinary {
            self.note();
        }
        let mut sent = self.filter.feed(events.iter().map(Vec::as_slice));
        self.filter.lock().end(&mut sent);
        Some(sent)
    }

    /// Reads an event and notes what it adds; whether it is passed on.
    fn read(&mut self, number: usize) -> bool {
        let event = &self.splitter.all()[self.events[number].clone()];
        if self.passes != Passes::Ordinary {
            let passes = !may_be_error(event) && !ABORTED.is_in(event) && !is_last(event);
            if passes && self.passes == Passes::Recorded {
                self.notes.trail.note(event);
            }
            return passes;
        }
        let read = if self.first { self.chunk.read_first(event) } else { self.chunk.read(event) };
        if read.is_some() {
            self.note();
        }
        read.is_some()
    }

    /// Notes what the chunk adds.
    fn note(&mut self) {
        self.notes.ids.extend_from_slice(&self.chunk.ids);
        self.notes.text.push_str(&self.chunk.text);
        self.notes.finish = self.chunk.finish;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::filter::{Rules, StreamFilter};
    use super::super::trail::{KeptBytes, Passed, Unkept};
    use super::*;

    fn filter() -> SharedFilter {
        let rules = Rules { strip_usage: true, strip_ids: true, single: true, ..Rules::default() };
        SharedFilter::new(StreamFilter::new(rules, None))
    }

    fn resumable(begun: &[u8]) -> Passing {
        Passing::new(begun.to_vec(), 200, filter(), Passes::Ordinary)
    }

    fn said(text: &str, id: u32) -> String {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"token_ids\":[{id}]}}]}}\n\n")
    }

    fn cut(text: &str) -> String {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}},\"token_ids\":null}}]}}\n\n")
    }

    struct Relayed {
        passed: String,
        handed: Vec<String>,
        rest: String,
        notes: Notes,
    }

    /// What comes of a stream that is read in pieces, up to the first read of which something is handed back.
    fn passed(pieces: &[&[u8]]) -> Result<Relayed, TooLarge> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let (mut passing, mut passed, mut handed) = (resumable(b""), Vec::new(), Vec::new());
        for piece in pieces {
            passing.bytes().extend_from_slice(piece);
            if handed.is_empty() {
                let taken = passing.take()?;
                passed.extend(taken.passed);
                handed.extend(taken.handed.into_iter().map(text));
            }
        }
        let (rest, notes) = passing.into_rest();
        Ok(Relayed { passed: text(passed), handed, rest: text(rest), notes })
    }

    #[test]
    fn passes_ordinary_events_and_hands_back_from_the_first_other_one() {
        let stream = said("a", 1) + &said("b", 2) + ": ping\n\n" + &said("c", 3) + "data: {";
        let found = passed(&[stream.as_bytes()]).unwrap();
        assert_eq!(found.passed, cut("a") + &cut("b"));
        assert_eq!(found.handed, [": ping\n\n".to_owned(), said("c", 3)]);
        assert_eq!(found.rest, "data: {");
        assert_eq!(found.notes, Notes { ids: vec![1, 2], text: "ab".into(), finish: "", ..Notes::default() });
    }

    #[test]
    fn what_is_passed_does_not_depend_on_where_the_stream_is_cut() {
        let stream = said("ä", 1) + &said("b", 2) + &said("c", 3) + "data: [DONE]\n\n";
        for at in 0..=stream.len() {
            let (one, two) = stream.as_bytes().split_at(at);
            let found = passed(&[one, two]).unwrap();
            assert_eq!(found.passed, cut("ä") + &cut("b") + &cut("c"));
            assert_eq!((found.handed, found.rest.as_str()), (vec!["data: [DONE]\n\n".to_owned()], ""));
            assert_eq!(found.notes, Notes { ids: vec![1, 2, 3], text: "äbc".into(), finish: "", ..Notes::default() });
        }
    }

    #[test]
    fn an_error_is_handed_back_with_all_that_came_with_it() {
        let stream = said("a", 1) + "data: {\"error\":{}}\n\n";
        let found = passed(&[said("z", 0).as_bytes(), stream.as_bytes()]).unwrap();
        assert_eq!((found.passed, found.handed), (cut("z"), vec![said("a", 1), "data: {\"error\":{}}\n\n".into()]));
        assert_eq!(found.notes, Notes { ids: vec![0], text: "z".into(), finish: "", ..Notes::default() });
    }

    #[test]
    fn an_end_is_handed_over_up_to_an_error() {
        let error = "data: {\"error\":{}}\n\ndata: [DONE]\n\nda";
        let (mut passing, mut handed) = (resumable(b"data: "), Vec::new());
        passing.bytes().extend_from_slice(b"{}\n\ndata: [DO");
        assert_eq!(passing.hand(&mut handed), Ok(Vec::new()));
        passing.bytes().extend_from_slice(format!("NE]\n\n{error}").as_bytes());
        assert_eq!(passing.hand(&mut handed), Ok(error.as_bytes().to_vec()));
        assert_eq!(handed, [b"data: {}\n\n".to_vec(), b"data: [DONE]\n\n".to_vec()]);
        passing.bytes().extend_from_slice(&[b'x'; 201]);
        assert_eq!(passing.hand(&mut handed), Err(TooLarge));
    }

    #[test]
    fn an_ordinary_beginning_is_passed_and_noted() {
        let role =
            "data: {\"id\":\"c\",\"choices\":[{\"delta\":{\"role\":\"assistant\"},\"prompt_token_ids\":[5]}]}\n\n";
        let first = role.to_owned() + &said("a", 1);
        assert!(begins(first.as_bytes()) && begins(said("a", 1).as_bytes()));
        for other in ["", role, &first[1..], &first[..first.len() - 1], &(first.clone() + "x"), &(said("a", 1) + role)]
        {
            assert!(!begins(other.as_bytes()), "{other}");
        }
        let part = ": cachefleet.replay [1]\n\n".to_owned();
        assert!(begins((part.clone() + &first).as_bytes()) && !begins((part.clone() + role).as_bytes()));
        let mut passing = Passing::first(first.into(), 200, filter(), Passes::Ordinary);
        assert!(passing.has_first());
        let sent = String::from_utf8(passing.take().unwrap().passed).unwrap();
        assert_eq!((sent, passing.has_first()), (role.replace("[5]", "null") + &cut("a"), false));
        let told = passing.into_rest().1;
        assert_eq!((told.ids, told.text.as_str()), (vec![1], "a"));
        let beginning = told.beginning.unwrap();
        assert_eq!((beginning.id.as_str(), beginning.prompt.as_slice()), ("c", b"[5]".as_slice()));
    }

    #[test]
    fn a_recorded_beginning_is_passed_and_noted_and_handed_over_where_none_was_asked_for() {
        let first = ": cachefleet.replay {\"ids\":[1]}\n\n".to_owned() + &said("a", 1);
        let made = |passes| Passing::first(first.clone().into(), 200, filter(), passes);
        let mut passing = made(Passes::Most).recording(RecordRoom::new(Arc::new(KeptBytes::new(99)), 99));
        assert_eq!(passing.take().unwrap(), Taken { passed: cut("a").into(), handed: Vec::new() });
        let (rest, told) = passing.into_rest();
        assert_eq!(
            (rest.len(), told.trail.record.as_slice(), told.trail.passed.events),
            (0, &b"{\"ids\":[1]}\n"[..], 1)
        );
        let mut passing = made(Passes::Ordinary);
        let taken = passing.take().unwrap();
        assert_eq!((taken.passed.len(), taken.handed.concat()), (0, first.into_bytes()));
        assert_eq!(passing.into_rest().1, Notes::default());
    }

    #[test]
    fn an_ordinary_end_is_noted_where_nothing_follows_it() {
        let last = said("b", 2).replace("},\"token", "},\"finish_reason\":\"stop\",\"token");
        let events = [last.clone(), "data: {\"choices\":[],\"usage\":{}}\n\n".into(), "data: [DONE]\n\n".into()];
        let events = events.map(String::into_bytes);
        let mut passing = resumable(b"x");
        assert_eq!(passing.end(&events), None);
        let mut passing = resumable(b"");
        assert_eq!(passing.end(&events[1..]), None);
        let sent = passing.end(&events).map(|sent| String::from_utf8(sent).unwrap());
        assert_eq!(sent, Some(last.replace("[2]", "null") + "data: [DONE]\n\n"));
        assert_eq!(passing.into_rest().1, Notes { ids: vec![2], text: "b".into(), finish: "stop", ..Notes::default() });
    }

    #[test]
    fn what_nobody_resumes_passes_but_for_errors_the_end_and_what_is_given_up() {
        let most = || Passing::new(Vec::new(), 500, filter(), Passes::Most);
        let last = said("b", 2).replace("},\"token", "},\"finish_reason\":\"stop\",\"token");
        let usage = "data: {\"choices\":[],\"usage\":{\"a\":1}}\n\n";
        let mut passing = most();
        passing
            .bytes()
            .extend_from_slice((said("a", 1) + ": ping\n\n" + &last + usage + "data: [DONE]\n\n").as_bytes());
        let taken = passing.take().unwrap();
        let passed = cut("a") + ": ping\n\n" + &last.replace("[2]", "null");
        assert_eq!(String::from_utf8(taken.passed).unwrap(), passed);
        assert_eq!(taken.handed, [b"data: [DONE]\n\n".to_vec()]);
        assert!(passing.ends(&taken.handed) && passing.end(&taken.handed) == Some(b"data: [DONE]\n\n".to_vec()));
        assert_eq!(passing.into_rest(), (Vec::new(), Notes::default()));
        for other in ["data: {\"error\":{}}\n\n".to_owned(), last.replace("stop", "abort")] {
            let mut passing = most();
            passing.bytes().extend_from_slice(other.as_bytes());
            let taken = passing.take().unwrap();
            assert_eq!((taken.passed, taken.handed.len()), (Vec::new(), 1), "{other}");
            assert!(!passing.ends(&taken.handed) && passing.end(&taken.handed).is_none());
        }
    }

    #[test]
    fn a_record_is_noted_and_not_passed_on() {
        let part = |line: &str| format!(": cachefleet.replay {line}\n\n");
        let kept = Arc::new(KeptBytes::new(18));
        let recorded = || {
            let room = RecordRoom::new(Arc::clone(&kept), 18);
            Passing::new(Vec::new(), 500, filter(), Passes::Most).recording(room)
        };
        let mut passing = recorded();
        let stream = part("{\"ids\":[1]}") + &said("a", 1) + ": ping\n\n" + &part("[2,3]") + "data: [DONE]\n\n";
        passing.bytes().extend_from_slice(stream.as_bytes());
        let taken = passing.take().unwrap();
        assert_eq!(String::from_utf8(taken.passed).unwrap(), cut("a") + ": ping\n\n");
        assert_eq!(taken.handed, [b"data: [DONE]\n\n".to_vec()]);
        assert!(passing.notes());
        let (trail, mut passed) = (passing.into_rest().1.trail, Passed::default());
        for event in [said("a", 1), ": ping\n\n".into()] {
            passed.add(event.as_bytes());
        }
        assert_eq!(trail, Trail { record: b"{\"ids\":[1]}\n[2,3]\n".to_vec(), passed, unkept: None });
        let mut passing = recorded();
        passing.bytes().extend_from_slice((part("\"0123456789abcdef\"") + &said("a", 1)).as_bytes());
        assert_eq!(String::from_utf8(passing.take().unwrap().passed).unwrap(), cut("a"));
        let told = passing.into_rest().1.trail;
        assert_eq!((told.record.len(), told.unkept, kept.held()), (0, Some(Unkept::TooLong), 0));
        let mut passing = recorded();
        passing.bytes().extend_from_slice((part("[4]") + &said("b", 4) + "data: {\"error\":{}}\n\n").as_bytes());
        assert_eq!(passing.take().unwrap().handed.len(), 3);
        assert_eq!(passing.into_rest().1, Notes::default());
        let mut others = Passing::new(part("[5]").into(), 500, filter(), Passes::Most);
        assert_eq!(others.take().unwrap().passed, part("[5]").as_bytes());
    }

    #[test]
    fn an_error_named_as_an_end_is_handed_back() {
        for event in
            ["event: response.failed\ndata: {\"error\":{}}\n\n", "event: message_stop\ndata: {\"error\":1}\n\n"]
        {
            assert_eq!(Passing::new(Vec::new(), 500, filter(), Passes::Most).end(&[event.into()]), None, "{event}");
        }
    }

    #[test]
    fn what_the_filter_holds_goes_with_the_end() {
        let last = said("b", 2).replace("},\"token", "},\"finish_reason\":\"stop\",\"token");
        for end in ["event: message_stop\ndata: {\"choices\":[]}\n\n", "event: response.completed\n\n"] {
            let mut passing = Passing::new(Vec::new(), 500, filter(), Passes::Most);
            passing.bytes().extend_from_slice(last.as_bytes());
            assert_eq!(passing.take().unwrap(), Taken::default());
            let sent = passing.end(&[end.into()]).map(|sent| String::from_utf8(sent).unwrap());
            assert_eq!(sent, Some(last.replace("[2]", "null") + end));
        }
    }

    #[test]
    fn the_end_of_a_choice_is_seen() {
        let ends = |event: &[u8]| resumable(b"").ends(&[event.to_vec()]);
        assert!(ends(b"data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n"));
        assert!(!ends(b"data: {\"choices\":[{\"finish_reason\":null}]}\n\n"));
    }

    #[test]
    fn an_event_is_bounded() {
        assert!(passed(&[said(&"x".repeat(200), 1).as_bytes()]).is_err());
    }
}
