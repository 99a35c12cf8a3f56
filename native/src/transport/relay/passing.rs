//! Decides what of a worker's stream is passed on, and what is Python's to read. Pure.

use std::ops::Range;

use memchr::memmem;

use super::chunk::{Beginning, Chunk};
use super::ending;
use super::splitter::{Splitter, TooLarge};

/// How an error of any API shows itself.
const ERROR: &[u8] = b"\"error\"";
/// How the end of a choice shows itself.
const FINISHED: &[u8] = b"\"finish_reason\":\"";

/// Whether an event ends a choice.
#[must_use]
pub fn finishes(event: &[u8]) -> bool {
    memmem::find(event, FINISHED).is_some()
}

/// Whether these are whole events that make an ordinary beginning of a stream, in the last of which something was produced.
#[must_use]
pub fn begins(data: &[u8]) -> bool {
    let (mut splitter, mut events, mut chunk) =
        (Splitter::new(data.len(), data.to_vec()), Vec::new(), Chunk::default());
    splitter.split(&mut events).is_ok()
        && events.last().is_some_and(|last| last.end == data.len())
        && events.iter().all(|event| chunk.read_first(&data[event.clone()]).is_some())
        && !(chunk.ids.is_empty() && chunk.text.is_empty())
}

/// What ordinary events have added to an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Notes {
    pub ids: Vec<u32>,
    pub text: String,
    /// Why its choice has ended; "" where it has not.
    pub finish: &'static str,
    /// What the first events told, where they were among them.
    pub beginning: Option<Beginning>,
}

/// What comes of the bytes of one read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// For the client.
    pub passed: Vec<u8>,
    /// Whole events from the first that is not ordinary.
    pub handed: Vec<Vec<u8>>,
    /// Tokens produced in what is passed, and those of the prompt where it is told there.
    pub produced: u64,
    pub prompt: u64,
}

/// A stream from the middle of which ordinary events are passed on.
pub struct Passing {
    splitter: Splitter,
    strip_ids: bool,
    /// Its first events are yet to be taken, and are there.
    first: bool,
    notes: Option<Notes>,
    chunk: Chunk,
    events: Vec<Range<usize>>,
}

impl Passing {
    /// Begins with the first bytes of an event; notes are made only where they are wanted.
    #[must_use]
    pub fn new(begun: Vec<u8>, limit: usize, strip_ids: bool, notes: bool) -> Self {
        let notes = notes.then(Notes::default);
        let splitter = Splitter::new(limit, begun);
        Self { splitter, strip_ids, first: false, notes, chunk: Chunk::default(), events: Vec::new() }
    }

    /// Begins with a stream's first events (see `begins`), which are to be taken at once.
    #[must_use]
    pub fn first(events: Vec<u8>, limit: usize, strip_ids: bool, notes: bool) -> Self {
        Self { first: true, ..Self::new(events, limit, strip_ids, notes) }
    }

    /// Whether its first events are to be taken at once.
    #[must_use]
    pub fn has_first(&self) -> bool {
        self.first
    }

    /// Where what was read is to be added.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        self.splitter.bytes()
    }

    /// The bytes after the last whole event, and the notes.
    #[must_use]
    pub fn into_rest(mut self) -> (Vec<u8>, Notes) {
        (std::mem::take(self.splitter.bytes()), self.notes.unwrap_or_default())
    }

    /// Notes what the first events told, which is told once.
    fn note_beginning(&mut self) {
        let beginning = std::mem::take(&mut self.chunk.beginning);
        if let Some(notes) = &mut self.notes {
            notes.beginning = Some(beginning);
        }
    }

    /// Takes the events that are whole now. An error among them may void those that came with it: none is passed.
    ///
    /// # Errors
    /// An event is longer than the limit.
    pub fn take(&mut self) -> Result<Taken, TooLarge> {
        self.events.clear();
        self.splitter.split(&mut self.events)?;
        let Some(end) = self.events.last().map(|event| event.end) else { return Ok(Taken::default()) };
        let before = self.notes.as_ref().map_or((0, 0), |notes| (notes.ids.len(), notes.text.len()));
        let mut taken = Taken { passed: Vec::with_capacity(end), ..Taken::default() };
        let mut ordinary = self.pass(&mut taken);
        if std::mem::take(&mut self.first) {
            self.note_beginning();
        }
        let handed = &self.splitter.all()[self.events.get(ordinary).map_or(end, |event| event.start)..end];
        if memmem::find(handed, ERROR).is_some() {
            taken = Taken::default();
            ordinary = 0;
            self.forget(before);
        }
        let handed = self.events[ordinary..].iter().map(|event| self.splitter.all()[event.clone()].to_vec()).collect();
        self.splitter.forget(end);
        Ok(Taken { handed, ..taken })
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
            if memmem::find(bytes, ERROR).is_some() {
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

    /// What the client is sent of a stream's last events, where they are an ordinary end and nothing follows; notes what
    /// they add.
    pub fn end(&mut self, events: &[Vec<u8>], strip_usage: bool) -> Option<Vec<u8>> {
        if !self.splitter.all().is_empty() {
            return None;
        }
        let passed = ending::passed(events, &mut self.chunk, self.strip_ids, strip_usage)?;
        self.note();
        Some(passed)
    }

    /// Tokens that the last event which was read brings.
    #[must_use]
    pub fn last_produced(&self) -> u64 {
        self.chunk.produced()
    }

    /// Notes what the chunk adds.
    fn note(&mut self) {
        if let Some(notes) = &mut self.notes {
            notes.ids.extend_from_slice(&self.chunk.ids);
            notes.text.push_str(&self.chunk.text);
            notes.finish = self.chunk.finish;
        }
    }

    /// Passes ordinary events up to the first other one; how many.
    fn pass(&mut self, taken: &mut Taken) -> usize {
        for number in 0..self.events.len() {
            let event = &self.splitter.all()[self.events[number].clone()];
            let read = if self.first { self.chunk.read_first(event) } else { self.chunk.read(event) };
            if read.is_none() {
                return number;
            }
            self.chunk.pass(event, &mut taken.passed, self.strip_ids);
            taken.produced += self.chunk.produced();
            taken.prompt = taken.prompt.max(self.chunk.prompt_ids);
            self.note();
        }
        self.events.len()
    }

    fn forget(&mut self, before: (usize, usize)) {
        if let Some(notes) = &mut self.notes {
            notes.ids.truncate(before.0);
            notes.text.truncate(before.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let (mut passing, mut passed, mut handed) = (Passing::new(Vec::new(), 200, true, true), Vec::new(), Vec::new());
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
        let (mut passing, mut handed) = (Passing::new(b"data: ".to_vec(), 200, true, true), Vec::new());
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
        let mut passing = Passing::first(first.into(), 200, true, true);
        assert!(passing.has_first());
        let sent = String::from_utf8(passing.take().unwrap().passed).unwrap();
        assert_eq!((sent, passing.has_first()), (role.replace("[5]", "null") + &cut("a"), false));
        let told = passing.into_rest().1;
        assert_eq!((told.ids, told.text.as_str()), (vec![1], "a"));
        let beginning = told.beginning.unwrap();
        assert_eq!((beginning.id.as_str(), beginning.prompt.as_slice()), ("c", b"[5]".as_slice()));
    }

    #[test]
    fn an_ordinary_end_is_noted_where_nothing_follows_it() {
        let last = said("b", 2).replace("},\"token", "},\"finish_reason\":\"stop\",\"token");
        let events = [last.clone(), "data: {\"choices\":[],\"usage\":{}}\n\n".into(), "data: [DONE]\n\n".into()];
        let events = events.map(String::into_bytes);
        let mut passing = Passing::new(b"x".to_vec(), 200, true, true);
        assert_eq!(passing.end(&events, true), None);
        let mut passing = Passing::new(Vec::new(), 200, true, true);
        assert_eq!(passing.end(&events[1..], true), None);
        let sent = passing.end(&events, true).map(|sent| String::from_utf8(sent).unwrap());
        assert_eq!(sent, Some(last.replace("[2]", "null") + "data: [DONE]\n\n"));
        assert_eq!(passing.into_rest().1, Notes { ids: vec![2], text: "b".into(), finish: "stop", ..Notes::default() });
    }

    #[test]
    fn tokens_are_counted_by_ids_or_by_events_with_text() {
        let taken = |stream: &str| {
            let mut passing = Passing::new(Vec::new(), 500, true, false);
            passing.bytes().extend_from_slice(stream.as_bytes());
            let taken = passing.take().unwrap();
            (taken.produced, taken.prompt)
        };
        let bare = r#"data: {"choices":[{"delta":{"content":"a"}}]}"#.to_owned() + "\n\n";
        let mute = bare.replace("\"a\"", "\"\"");
        assert_eq!(taken(&(said("a", 1) + &said("b", 2).replace("[2]", "[2,3]"))), (3, 0));
        assert_eq!(taken(&(bare.clone() + &mute + &bare)), (2, 0));
        assert_eq!(taken(&said("a", 1).replace("[1]", "[]")), (0, 0));
        assert_eq!(taken(&(said("a", 1) + "data: {\"error\":{}}\n\n")), (0, 0), "which Python counts");
        let role = r#"data: {"choices":[{"delta":{"role":"x"}}],"prompt_token_ids":[5,6]}"#.to_owned() + "\n\n";
        let mut passing = Passing::first((role + &said("a", 1)).into(), 500, true, false);
        let first = passing.take().unwrap();
        assert_eq!((first.produced, first.prompt), (1, 2));
    }

    #[test]
    fn the_end_of_a_choice_is_seen() {
        assert!(finishes(b"data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\n"));
        assert!(!finishes(b"data: {\"choices\":[{\"finish_reason\":null}]}\n\n"));
    }

    #[test]
    fn an_event_is_bounded() {
        assert!(passed(&[said(&"x".repeat(200), 1).as_bytes()]).is_err());
    }
}
