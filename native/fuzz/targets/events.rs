//! Streams of events, cut anywhere, through the splitter and the recogniser of ordinary events, against slow readers.

use super::json_value::{Value, parse};
use super::tape::Tape;
use cachefleet_native::transport::relay::{
    Notes, Passes, Passing, Rules, SharedFilter, Splitter, StreamFilter, Taken, TooLarge, begins,
};

const LIMIT: usize = 300;
const IDS: &[u8] = b"token_ids\":[";
const DONE: &[u8] = b"data: [DONE]\n\n";

/// A stream of one choice that another worker may resume, whose usage and ids go.
fn passing(begun: Vec<u8>, strip_usage: bool) -> Passing {
    let rules = Rules { strip_usage, strip_ids: true, single: true, ..Rules::default() };
    Passing::new(begun, LIMIT, SharedFilter::new(StreamFilter::new(rules, None)), Passes::Ordinary)
}

/// Whole events, and what follows the last; None where one is too long.
type Split = Option<(Vec<Vec<u8>>, Vec<u8>)>;

pub fn any(data: &[u8]) {
    let mut tape = Tape(data);
    let cuts = cuts(&mut tape);
    assert_eq!(split(tape.0, &cuts), slowly(tape.0));
    pass(tape.0, &cuts);
}

/// A stream of events such as engines and others say.
pub fn likely(data: &[u8]) {
    let mut tape = Tape(data);
    let cuts = cuts(&mut tape);
    let mut stream = Vec::new();
    let mut ordinary = 0;
    for number in 0..=tape.below(6) {
        let (event, is_ordinary) = event(&mut tape);
        stream.extend_from_slice(&event);
        ordinary += usize::from(is_ordinary && ordinary == usize::from(number));
    }
    assert_eq!(split(&stream, &cuts), slowly(&stream));
    assert!(pass(&stream, &cuts) == ordinary || contains(&stream, b"\"error\""));
    end(&last_events(&mut tape), tape.byte() & 1 == 0);
    begin(&first_events(&mut tape));
}

fn cuts(tape: &mut Tape<'_>) -> Vec<usize> {
    (0..tape.below(6)).map(|_| usize::from(tape.byte())).collect()
}

fn pieces<'a>(mut data: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    for cut in cuts {
        let piece;
        (piece, data) = data.split_at((*cut).min(data.len()));
        pieces.push(piece);
    }
    pieces.push(data);
    pieces
}

fn split(data: &[u8], cuts: &[usize]) -> Split {
    let (mut splitter, mut found) = (Splitter::new(LIMIT, Vec::new()), Vec::new());
    for piece in pieces(data, cuts) {
        splitter.bytes().extend_from_slice(piece);
        let mut events = Vec::new();
        splitter.split(&mut events).ok()?;
        found.extend(events.iter().map(|event| splitter.all()[event.clone()].to_vec()));
        splitter.forget(events.last().map_or(0, |event| event.end));
    }
    Some((found, splitter.all().to_vec()))
}

/// As `split`, byte by byte.
fn slowly(data: &[u8]) -> Split {
    let (mut events, mut event) = (Vec::new(), Vec::new());
    for byte in data {
        event.push(*byte);
        if event.len() > LIMIT {
            return None;
        }
        if event.ends_with(b"\n\n") || event.ends_with(b"\r\n\r\n") {
            events.push(std::mem::take(&mut event));
        }
    }
    Some((events, event))
}

/// Passes a stream on until there is something for Python; how many events were passed. Nothing is lost or changed but
/// token ids, and what is noted is what was said.
fn pass(data: &[u8], cuts: &[usize]) -> usize {
    let mut passing = passing(Vec::new(), true);
    let (mut fed, mut out, mut given) = (Vec::new(), Vec::new(), Vec::new());
    for piece in pieces(data, cuts) {
        fed.extend_from_slice(piece);
        passing.bytes().extend_from_slice(piece);
        match passing.take() {
            Ok(Taken { passed, handed }) => {
                out.extend(passed);
                given = handed;
            }
            Err(TooLarge) => return check_too_large(&fed),
        }
        if !given.is_empty() {
            break;
        }
    }
    let (rest, notes) = passing.into_rest();
    check(&fed, &out, &given, &rest, &notes)
}

fn check_too_large(fed: &[u8]) -> usize {
    assert_eq!(slowly(fed), None);
    0
}

fn check(fed: &[u8], out: &[u8], given: &[Vec<u8>], rest: &[u8], notes: &Notes) -> usize {
    let (events, end) = slowly(fed).expect("none is too long");
    let passed = events.len() - given.len();
    assert_eq!((&events[passed..], end.as_slice()), (given, rest));
    let mut expected = (Vec::new(), Notes::default());
    for event in &events[..passed] {
        expected.0.extend(without_ids(event));
        note(event, &mut expected.1);
    }
    assert_eq!((text(out), notes), (text(&expected.0), &expected.1));
    passed
}

/// Passes a stream's beginning on where it is ordinary: then nothing is lost or changed but token ids, and its name and
/// the prompt's ids are known.
fn begin(data: &[u8]) {
    if !begins(data) {
        return;
    }
    let rules = Rules { strip_ids: true, single: true, ..Rules::default() };
    let filter = SharedFilter::new(StreamFilter::new(rules, None));
    let mut passing = Passing::first(data.to_vec(), data.len(), filter, Passes::Ordinary);
    let Ok(Taken { passed, handed }) = passing.take() else { panic!("it is short") };
    assert_eq!((text(&passed), handed.len()), (text(&without_ids(data)), 0));
    let told = passing.into_rest().1;
    assert!(!(told.ids.is_empty() && told.text.is_empty()));
    let beginning = told.beginning.expect("a beginning");
    let end = data.windows(2).position(|two| two == b"\n\n").expect("an event") + 2;
    let first = json(&data[..end]);
    for (name, known) in [("id", &beginning.id), ("object", &beginning.object), ("model", &beginning.model)] {
        assert_eq!(first.get(name).and_then(Value::text).unwrap_or_default(), known);
    }
    if let Some(Value::List(ids)) = first.get("prompt_token_ids")
        && !ids.is_empty()
    {
        let Some(Value::List(prompt)) = parse(&text(&beginning.prompt)) else { panic!("no ids") };
        let numbers = |ids: &[Value]| ids.iter().map(Value::number).collect::<Vec<_>>();
        assert_eq!(numbers(&prompt), numbers(ids));
    }
}

/// The first events of a stream, a byte of them changed at times.
fn first_events(tape: &mut Tape<'_>) -> Vec<u8> {
    let said = ["", "a", "\\n"][usize::from(tape.below(3))];
    let ids = ["null", "[]", "[1,22]", "[1.5]"];
    let (top, own) = (ids[usize::from(tape.below(4))], ids[usize::from(tape.below(4))]);
    let usage = ["null", "null", "{}"][usize::from(tape.below(3))];
    let role = format!(
        r#"data: {{"id":"c{said}","object":"o","created":12,"choices":[{{"delta":{{"role":"assistant","content":"{said}"}},"prompt_token_ids":{own}}}],"prompt_token_ids":{top},"usage":{usage}}}"#
    );
    let mut data = [role.as_bytes(), b"\n\n"].concat();
    if tape.below(4) > 0 {
        data.extend(event(tape).0);
    }
    let at = usize::from(tape.byte()) * usize::from(tape.below(3));
    if let Some(byte) = data.get_mut(at) {
        *byte = if at == 0 { *byte } else { tape.byte() };
    }
    data
}

/// Passes a stream's end on where it is ordinary: then it is what it has to be, but for usage that is stripped, whose
/// fingerprint is the last member of what comes before it.
fn end(events: &[Vec<u8>; 3], strip_usage: bool) {
    let mut passing = passing(Vec::new(), strip_usage);
    let Some(sent) = passing.end(events) else { return };
    let [last, usage, done] = events;
    assert_eq!(done, DONE);
    let (said, told) = (json(last), json(usage));
    let Some(Value::List(choices)) = said.get("choices") else { panic!("no choices") };
    let finish = choices[0].get("finish_reason").and_then(Value::text).expect("a reason");
    assert!(choices.len() == 1 && ["stop", "length", "tool_calls"].contains(&finish));
    assert!(matches!(told.get("choices"), Some(Value::List(none)) if none.is_empty()));
    assert!(matches!(told.get("usage"), Some(Value::Object(_))));
    assert_eq!(passing.into_rest().1.finish, finish);
    let last = without_ids(last);
    match told.get("system_fingerprint").and_then(Value::text) {
        _ if !strip_usage => assert_eq!(text(&sent), text(&[&last, usage.as_slice(), DONE].concat())),
        None => assert_eq!(text(&sent), text(&[&last, DONE].concat())),
        Some(fingerprint) => {
            let signed = sent.strip_suffix(DONE).expect("the end");
            assert!(signed.starts_with(last.strip_suffix(b"}\n\n").expect("an object")));
            assert_eq!(json(signed).get("system_fingerprint").and_then(Value::text), Some(fingerprint));
        }
    }
}

fn json(event: &[u8]) -> Value {
    let data = event.strip_prefix(b"data: ").and_then(|rest| rest.strip_suffix(b"\n\n")).expect("one line of data");
    parse(std::str::from_utf8(data).expect("text")).expect("JSON")
}

/// The last events of a stream, one of them changed at times.
fn last_events(tape: &mut Tape<'_>) -> [Vec<u8>; 3] {
    let finish = [r#""stop""#, r#""length""#, r#""tool_calls""#, r#""cache_threshold""#, r#""abort""#, "null"];
    let (finish, stop) =
        (finish[usize::from(tape.below(6))], ["null", "7", "\"\\n\"", "-1"][usize::from(tape.below(4))]);
    let delta =
        [r#"{"content":"a"}"#, r#"{"content":"\"error\""}"#, "{}", "{\"content\":null}"][usize::from(tape.below(4))];
    let ids = ["null", "[]", "[1,22]"][usize::from(tape.below(3))];
    let usage = ["{}", r#"{"a":{"b":[1]}}"#, "null"][usize::from(tape.below(3))];
    let signed = ["", r#","system_fingerprint":null"#, r#","system_fingerprint":"f\n""#][usize::from(tape.below(3))];
    let mut events = [
        format!(
            r#"{{"choices":[{{"delta":{delta},"finish_reason":{finish},"stop_reason":{stop},"token_ids":{ids}}}]}}"#
        ),
        format!(r#"{{"id":"c","choices":[],"usage":{usage}{signed}}}"#),
        "[DONE]".to_owned(),
    ]
    .map(|data| format!("data: {data}\n\n").into_bytes());
    let (which, at) = (usize::from(tape.below(6)), usize::from(tape.byte()));
    if let Some(byte) = events.get_mut(which).and_then(|event| event.get_mut(at)) {
        *byte = tape.byte();
    }
    events
}

/// An event with null for its lists of token ids.
fn without_ids(event: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), event);
    while let Some(at) = rest.windows(IDS.len()).position(|part| part == IDS) {
        let end = rest[at..].iter().position(|byte| *byte == b']').expect("a list's end");
        out.extend_from_slice(&rest[..at + IDS.len() - 1]);
        out.extend_from_slice(b"null");
        rest = &rest[at + end + 1..];
    }
    out.extend_from_slice(rest);
    out
}

/// Adds what an event that was passed says; it has to be one that says nothing else.
fn note(event: &[u8], notes: &mut Notes) {
    let said = json(event);
    for name in ["error", "prompt_token_ids", "kv_transfer_params"] {
        assert!(said.get(name).is_none_or(Value::is_null), "{name}");
    }
    let Some(Value::List(choices)) = said.get("choices") else { panic!("no choices") };
    assert!(!choices.is_empty());
    for choice in choices {
        for name in ["finish_reason", "prompt_token_ids", "message"] {
            assert!(choice.get(name).is_none_or(Value::is_null), "{name}");
        }
        if let Some(Value::List(ids)) = choice.get("token_ids") {
            notes.ids.extend(ids.iter().map(|id| id.number().expect("an id")));
        }
        let said = choice.get("delta").and_then(|delta| delta.get("content"));
        let text = choice.get("text").and_then(Value::text).filter(|text| !text.is_empty());
        notes.text.push_str(text.or(said.and_then(Value::text)).unwrap_or_default());
    }
}

fn contains(data: &[u8], part: &[u8]) -> bool {
    data.windows(part.len()).any(|here| here == part)
}

fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// An event, and whether it is an ordinary one.
fn event(tape: &mut Tape<'_>) -> (Vec<u8>, bool) {
    let text = ["", "a", "\\n", "ä", "\\u00e9", "\\ud83d\\ude42", "{\\\"delta\\\":{}}", "token_ids\\\":[1]"]
        [usize::from(tape.below(8))];
    let ids = ["null", "[]", "[1]", "[1,22,4294967295]"][usize::from(tape.below(4))];
    let head = r#""id":"c","object":"o","created":1,"model":"m""#;
    let (event, ordinary) = match tape.below(16) {
        0..=5 => (
            format!(
                r#"data: {{{head},"choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null,"token_ids":{ids}}}]}}"#
            ),
            true,
        ),
        6 | 7 => (
            format!(
                r#"data: {{{head},"choices":[{{"index":0,"text":"{text}","logprobs":{{"x":[-1.5e3]}},"token_ids":{ids}}},{{"text":null,"token_ids":{ids}}}],"usage":{{"a":1}}}}"#
            ),
            true,
        ),
        8 => (
            format!(r#"data: {{{head},"choices":[{{"delta":{{"content":"{text}"}},"finish_reason":"stop"}}]}}"#),
            false,
        ),
        9 => (format!(r#"data: {{{head},"choices":[],"usage":{{"prompt_tokens":1}}}}"#), false),
        10 => (format!(r#"data: {{"error":{{"message":"{text}"}}}}"#), false),
        11 => (
            format!(r#"data: {{{head},"choices":[{{"delta":{{"content":"{text}"}},"prompt_token_ids":{ids}}}]}}"#),
            ids == "null",
        ),
        12 => ("data: [DONE]".into(), false),
        13 => (format!(": {text}"), false),
        14 => (format!("event: x\ndata: {{\"choices\":[{{\"text\":\"{text}\"}}]}}"), false),
        _ => (format!(r#"data: {{"choices":[{{"text":"{text}"}}],"a_token_ids":{ids}}}"#), ids == "null"),
    };
    let end = ["\n\n", "\n\n", "\n\n", "\r\n\r\n"][usize::from(tape.below(4))];
    ((event + end).into_bytes(), ordinary && end == "\n\n")
}
