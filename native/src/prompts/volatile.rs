//! Words of a prompt that are likely to be others in the next one: times and ids, by their form and what stands before.
//!
//! Told of one request alone, before it is sent. A date that never changes cannot be told from today's, so a finding is
//! `sure` only where it has a time of day, or stands behind a word such as "today" or "session".

use super::parts::{Known, Reader};
use super::shape::{Item, Part, PartKind, Role, ToolList};
use super::words::{Class, spelt};
use crate::ask::Members;
use std::cell::RefCell;
use std::sync::Arc;

/// Words told of one prompt, the first ones.
pub const MOST_TOLD: usize = 64;
/// Words before a time or an id that say what it is.
const BEFORE: usize = 4;
const OF_TIMES: [&[u8]; 8] = [b"now", b"today", b"current", b"currently", b"date", b"time", b"timestamp", b"clock"];
#[rustfmt::skip]
const OF_IDS: [&[u8]; 12] = [
    b"id", b"uuid", b"guid", b"session", b"request", b"trace", b"nonce", b"conversation", b"correlation", b"run",
    b"thread", b"ticket",
];
/// Letters and digits of an id that nobody would write by hand.
const RANDOM_LETTERS: usize = 10;
/// Changes between letters and digits in it.
const RANDOM_TURNS: usize = 3;

/// A time or an id in a part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volatile {
    pub kind: PartKind,
    pub role: Role,
    /// Its message, or its place among the tools.
    pub index: u32,
    /// `Time` or `Id`.
    pub class: Class,
    /// By its form, or by the words before it, it is another each time.
    pub sure: bool,
    /// Characters of the part before it.
    pub characters: u32,
    /// Bytes of the prompt's text before it, without media.
    pub bytes_before: u64,
}

/// The times and ids of a request's prompt, in its order; at most `MOST_TOLD`. None where the prompt has no shape.
#[must_use]
pub fn volatile(fields: &Members) -> Option<Vec<Volatile>> {
    let seen = Seen::default();
    Reader { secret: 0, known: &seen }.shape(fields, b"")?;
    Some(seen.0.into_inner().found)
}

#[derive(Default)]
struct Seen(RefCell<Read>);

#[derive(Default)]
struct Read {
    bytes: u64,
    found: Vec<Volatile>,
}

impl Known for Seen {
    const WORDS: bool = false;

    fn item(&self, _: u64) -> Option<Arc<Item>> {
        None
    }

    fn tools(&self, _: u64) -> Option<Arc<ToolList>> {
        None
    }

    fn read(&self, part: &Part, text: &[u8]) {
        let mut read = self.0.borrow_mut();
        let before = read.bytes;
        if part.kind != PartKind::Media {
            read.bytes += u64::from(part.bytes);
            for (at, class, sure) in of_text(text).take(MOST_TOLD - read.found.len().min(MOST_TOLD)) {
                let characters = text[..at].iter().filter(|byte| **byte & 0xC0 != 0x80).count();
                let characters = u32::try_from(characters).unwrap_or(u32::MAX);
                let (kind, role, index, bytes_before) = (part.kind, part.role, part.index, before + at as u64);
                read.found.push(Volatile { kind, role, index, class, sure, characters, bytes_before });
            }
        }
    }
}

/// Where in a text times and ids begin, in bytes; those of several words, or close to each other, are told once.
fn of_text(text: &[u8]) -> impl Iterator<Item = (usize, Class, bool)> {
    let mut before: [&[u8]; BEFORE] = [b""; BEFORE];
    let mut told = [None; 2];
    spelt(text).enumerate().filter_map(move |(number, (at, word, class))| {
        let mut found = judged(word, class, &before);
        if let Some((class, _)) = found {
            let last = &mut told[usize::from(class == Class::Time)];
            if last.is_some_and(|last| number - last <= BEFORE) {
                found = None;
            }
            *last = Some(number);
        }
        before.rotate_left(1);
        before[BEFORE - 1] = word;
        found.map(|(class, sure)| (at, class, sure))
    })
}

/// What a word is, and whether it is sure to change; None for what stays, as far as can be told.
fn judged(word: &[u8], class: Class, before: &[&[u8]]) -> Option<(Class, bool)> {
    let behind = |names: &[&[u8]]| before.iter().any(|one| names.iter().any(|name| one.eq_ignore_ascii_case(name)));
    let digits = word.iter().any(u8::is_ascii_digit);
    match class {
        Class::Time if digits && to_the_second(word) => Some((Class::Time, true)),
        Class::Time if behind(&OF_TIMES) => Some((Class::Time, true)),
        Class::Time if digits && word.len() >= 8 => Some((Class::Time, false)),
        Class::Id if random(word) => Some((Class::Id, true)),
        Class::Id | Class::Number if behind(&OF_IDS) && word.len() >= 3 => Some((Class::Id, true)),
        _ => None,
    }
}

/// A stamp, or a time of day with seconds.
fn to_the_second(word: &[u8]) -> bool {
    let clock = memchr::memchr_iter(b':', word).count() >= 2;
    clock || word.len() >= 10 && word.iter().all(u8::is_ascii_digit)
}

/// A UUID, or letters and digits in turns that are no word, name or version.
fn random(word: &[u8]) -> bool {
    let hexadecimal = word.len() >= 32 && word.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    hexadecimal || word.split(|byte| !byte.is_ascii_alphanumeric()).any(in_turns)
}

fn in_turns(piece: &[u8]) -> bool {
    let turns = piece.windows(2).filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit()).count();
    piece.len() >= RANDOM_LETTERS && turns >= RANDOM_TURNS
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn told(text: &str) -> Vec<(Class, bool)> {
        of_text(text.as_bytes()).map(|(_, class, sure)| (class, sure)).collect()
    }

    #[test]
    fn what_changes_each_time_is_told() {
        for text in [
            "Today is 2026-11-27.",
            "Current date: Friday, November 27, 2026",
            "It is 9:05:01 there",
            "Written 2026-11-27T09:05:59Z by a machine",
            "Stamp 1795771234 follows",
            "今天是 date: 2026年11月27日 好",
        ] {
            assert_eq!(told(text), [(Class::Time, true)], "{text}");
        }
        for text in [
            "Session 4711 of",
            "user id: 482915 asks",
            "trace 3f2504e0-4f89-11d3-9a0c-0305e82c3301 goes on",
            "See 01HZX3K9AB2C4D5E for more",
            "The request a1b2c3d4 came",
        ] {
            assert_eq!(told(text), [(Class::Id, true)], "{text}");
        }
        let both = told("Now: 2026-11-27 09:05. Session 3f2504e0-4f89-11d3-9a0c-0305e82c3301.");
        assert_eq!(both, [(Class::Time, true), (Class::Id, true)]);
        assert_eq!(told("Rules as of 2026-01-15 apply"), [(Class::Time, false)]);
    }

    #[test]
    fn what_stays_is_not_told() {
        for text in [
            "You are gpt-4o-mini, a helpful assistant of version 3.14.2",
            "Use claude-3-5-sonnet-20241022 or Qwen3-32B in utf-8 with sha256 or base64",
            "Open Monday to Friday, 9:00 to 17:30, in May and June",
            "Answer in at most 200 words. Item 17 of 1999.",
            "See https://example.com/v1/chat/completions and RFC 9110",
            "",
        ] {
            assert_eq!(told(text), [], "{text}");
        }
    }

    #[test]
    fn a_place_is_given_in_its_part_and_in_the_prompt() {
        let body = r#"{"tools": [{"name": "aé"}], "messages": [
            {"role": "system", "content": "Ünder way. Now: 10:00:00."}, {"role": "user", "content": "Hi"}]}"#;
        let members = Members::parse(&Bytes::copy_from_slice(body.as_bytes())).unwrap();
        let [found] = volatile(&members).unwrap()[..] else { panic!() };
        assert_eq!((found.kind, found.role, found.index), (PartKind::System, Role::System, 0));
        let (tool, said) = ("{\"name\": \"aé\"}", "Ünder way. Now: ");
        assert_eq!(usize::try_from(found.characters).unwrap(), said.chars().count());
        assert_eq!(usize::try_from(found.bytes_before).unwrap(), tool.len() + said.len());
    }

    #[test]
    fn no_more_than_the_bound_is_told() {
        let text = "session 12345 and so on and so on ".repeat(3 * MOST_TOLD);
        let body = format!(r#"{{"prompt": "{text}", "messages": [{{"role": "user", "content": "{text}"}}]}}"#);
        let members = Members::parse(&Bytes::from(body)).unwrap();
        assert_eq!(volatile(&members).unwrap().len(), MOST_TOLD);
    }
}
