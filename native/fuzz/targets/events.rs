//! Streams of events, cut anywhere: what is passed on and what is handed back make the stream, but for token ids.

use super::tape::Tape;
use cachefleet_native::transport::relay::{Notes, Passing, Taken};

const LIMIT: usize = 1000;
const IDS: &str = "token_ids\":[";

pub fn events(data: &[u8]) {
    let mut tape = Tape(data);
    let strip_ids = tape.below(2) == 0;
    let mut cuts: Vec<usize> = (0..tape.below(4)).map(|_| usize::from(tape.byte()) * 4).collect();
    let data = tape.0;
    cuts.extend([0, data.len()]);
    cuts.retain(|cut| *cut <= data.len());
    cuts.sort_unstable();
    let mut passing = Passing::new(Vec::new(), LIMIT, strip_ids, true);
    let mut noted = String::new();
    let mut begun = Vec::new();
    for piece in cuts.windows(2).map(|ends| &data[ends[0]..ends[1]]) {
        passing.bytes().extend_from_slice(piece);
        begun.extend_from_slice(piece);
        let Ok(taken) = passing.take() else { return };
        begun = check(&taken, &begun, strip_ids, &mut noted);
    }
    let (rest, Notes { text, .. }) = passing.into_rest();
    assert_eq!(rest, begun);
    assert!(text.len() <= noted.len());
}

/// Holds what was taken against all bytes there were; returns those that are left.
fn check(taken: &Taken, all: &[u8], strip_ids: bool, noted: &mut String) -> Vec<u8> {
    let end = (1..=all.len()).fold(0, |start, at| if is_end(&all[start..at]) { at } else { start });
    let (whole, rest) = all.split_at(end);
    let handed = taken.handed.concat();
    assert!(whole.ends_with(&handed));
    assert!(taken.handed.iter().all(|event| is_end(event) && (1..event.len()).all(|end| !is_end(&event[..end]))));
    let before = std::str::from_utf8(&whole[..whole.len() - handed.len()]).expect("text");
    assert_eq!(taken.passed, if strip_ids { cut(before) } else { before.to_owned() }.as_bytes());
    assert!(!before.contains("\"error\"") && !before.contains("\"finish_reason\":\""));
    noted.push_str(before);
    rest.to_vec()
}

fn is_end(bytes: &[u8]) -> bool {
    bytes.ends_with(b"\n\n") || bytes.ends_with(b"\r\n\r\n")
}

/// By the rule of `token_id_cutting.cut_ids`.
fn cut(events: &str) -> String {
    let mut parts = events.split(IDS);
    let mut left = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, after) = part.split_once(']').expect("a list ends");
        left += "token_ids\":null";
        left += after;
    }
    left
}
