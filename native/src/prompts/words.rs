//! A text as words: for each a few bits of a keyed digest, and its class, which tells a time or an id from other text.

use super::{keyed_digest, short, short_digest, word_digest};
use std::ops::Range;

/// Words kept of one part.
pub const MOST_WORDS: usize = 16_384;
const CLASS_BITS: u32 = 3;
const NAMES: [&[u8]; 24] = [
    b"jan", b"feb", b"mar", b"apr", b"may", b"jun", b"jul", b"aug", b"sep", b"sept", b"oct", b"nov", b"dec", b"mon",
    b"tue", b"tues", b"wed", b"thu", b"thur", b"thurs", b"fri", b"sat", b"sun", b"utc",
];
const LONG_NAMES: [&[u8]; 18] = [
    b"january",
    b"february",
    b"march",
    b"april",
    b"june",
    b"july",
    b"august",
    b"september",
    b"october",
    b"november",
    b"december",
    b"monday",
    b"tuesday",
    b"wednesday",
    b"thursday",
    b"friday",
    b"saturday",
    b"sunday",
];
/// Characters that stand behind numbers in dates and times: year, month, day, hour, minute, second.
const MARKS: [&str; 7] = ["年", "月", "日", "时", "時", "分", "秒"];

/// What a word may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Text,
    Number,
    /// Letters and digits mixed, or a UUID.
    Id,
    /// A time, a date, or the name of a day or month.
    Time,
}

/// One word: the lower bits are its class, the others a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u32);

impl Word {
    #[expect(clippy::cast_possible_truncation, reason = "a few bits of a digest are enough")]
    fn with(digest: u64, class: Class) -> Self {
        Self((digest as u32) << CLASS_BITS | class as u32)
    }

    #[must_use]
    pub fn class(self) -> Class {
        match self.0 & ((1 << CLASS_BITS) - 1) {
            1 => Class::Number,
            2 => Class::Id,
            3 => Class::Time,
            _ => Class::Text,
        }
    }
}

/// The words of a text, the first `MOST_WORDS`; its bytes are looked at 64 at a time.
#[must_use]
pub fn words(text: &[u8], secret: u64) -> Vec<Word> {
    let mut found = Found { text, secret, words: Vec::with_capacity((text.len() / 5 + 1).min(MOST_WORDS)) };
    let mut open = None;
    for (number, chunk) in text.chunks(64).enumerate() {
        open = found.chunk(64 * number, masks(chunk), open);
        if found.words.len() >= MOST_WORDS {
            break;
        }
    }
    if let Some((begin, small)) = open {
        found.run(begin..text.len(), small);
    }
    found.words.truncate(MOST_WORDS);
    found.words
}

/// Where a run of bytes within words begins whose end is not seen yet, and whether all of it are small letters.
type Open = Option<(usize, bool)>;

/// Words as they are found in a text.
struct Found<'a> {
    text: &'a [u8],
    secret: u64,
    words: Vec<Word>,
}

impl Found<'_> {
    /// Read the runs that end among 64 bytes, of which each mask has a bit; the one that does not end is returned.
    fn chunk(&mut self, base: usize, (mut within, small): (u64, u64), open: Open) -> Open {
        if let Some((begin, all)) = open {
            let length = within.trailing_ones();
            let all = all && small.trailing_ones() >= length;
            if length == 64 {
                return Some((begin, all));
            }
            self.run(begin..base + length as usize, all);
            within &= u64::MAX << length;
        }
        while within != 0 {
            let from = within.trailing_zeros();
            let length = (within >> from).trailing_ones();
            let (begin, all) = (base + from as usize, (small >> from).trailing_ones() >= length);
            if from + length == 64 {
                return Some((begin, all));
            }
            within &= u64::MAX << (from + length);
            self.run(begin..begin + length as usize, all);
        }
        None
    }

    /// Read one run of bytes within words.
    #[inline]
    fn run(&mut self, run: Range<usize>, small: bool) {
        let length = run.len();
        if small && length <= 8 && (length != 2 || self.text[run.start + 1] != b'm') {
            let digest = short_digest(padded(self.text, &run), length, self.secret);
            self.words.push(Word::with(digest, Class::Text));
        } else {
            let text = self.text;
            self.other(&text[run]);
        }
    }

    fn other(&mut self, run: &[u8]) {
        let (word, digits) = read(run);
        let kept = (!word.is_empty()).then(|| Word::with(word_digest(word, self.secret), class(word, digits)));
        self.words.extend(kept);
    }
}

/// Which of up to 64 bytes are within words, and which are small letters: a bit for each.
fn masks(chunk: &[u8]) -> (u64, u64) {
    let mut last = [0; 64];
    let bytes = chunk.first_chunk().unwrap_or_else(|| {
        last[..chunk.len()].copy_from_slice(chunk);
        &last
    });
    let (mut words, mut small) = ([0; 64], [0; 64]);
    for (at, byte) in bytes.iter().enumerate() {
        words[at] = u8::from(within(*byte));
        small[at] = u8::from(byte.is_ascii_lowercase());
    }
    (bits(&words), bits(&small))
}

/// The lowest bit of each of 64 bytes.
fn bits(bytes: &[u8; 64]) -> u64 {
    let eight = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes).wrapping_mul(0x0102_0408_1020_4080) >> 56;
    bytes.as_chunks::<8>().0.iter().rev().fold(0, |bits, bytes| bits << 8 | eight(bytes))
}

/// A run of at most 8 bytes as a number.
fn padded(text: &[u8], run: &Range<usize>) -> u64 {
    match text[run.start..].first_chunk::<8>() {
        Some(bytes) => u64::from_le_bytes(*bytes) & u64::MAX >> (64 - 8 * run.len()),
        None => short(&text[run.clone()]),
    }
}

/// Words as they are spelt, each with where in the text it begins, in bytes, and its class.
pub fn spelt(text: &[u8]) -> impl Iterator<Item = (usize, &[u8], Class)> {
    let runs = text.split(|byte| !within(*byte)).map(read).filter(|(word, _)| !word.is_empty());
    runs.map(|(word, digits)| (word.as_ptr() as usize - text.as_ptr() as usize, word, class(word, digits)))
}

/// A run of bytes within words without punctuation at its ends, and its digits.
fn read(run: &[u8]) -> (&[u8], usize) {
    (trimmed(run), run.iter().filter(|byte| byte.is_ascii_digit()).count())
}

/// A digest of the words in which each time, id and number is replaced by its class.
#[must_use]
pub fn normal(words: &[Word], secret: u64) -> u64 {
    let kept = |word: &Word| if word.class() == Class::Text { word.0 } else { 1 };
    let mut bytes = Vec::with_capacity(4 * words.len());
    for (at, word) in words.iter().enumerate() {
        // A date is as many words as its writer likes: neighbours of a class count once.
        if word.class() == Class::Text || at == 0 || words[at - 1].class() == Class::Text {
            bytes.extend_from_slice(&kept(word).to_le_bytes());
        }
    }
    keyed_digest(&bytes, secret)
}

/// Whether a byte is within words: letters, digits, and the punctuation that may stand between them.
#[expect(clippy::needless_bitwise_bool, reason = "without branches, many bytes are read at a time")]
#[inline]
fn within(byte: u8) -> bool {
    let sign = (byte.wrapping_sub(b'-') <= b':' - b'-') | (byte == b'_') | (byte == b'+');
    ((byte | 0x20).wrapping_sub(b'a') < 26) | sign | (byte >= 0x80)
}

/// Without punctuation at its ends.
fn trimmed(mut word: &[u8]) -> &[u8] {
    while let [b'-' | b':' | b'.' | b'/' | b'_' | b'+', rest @ ..] = word {
        word = rest;
    }
    while let [rest @ .., b'-' | b':' | b'.' | b'/' | b'_' | b'+'] = word {
        word = rest;
    }
    word
}

fn class(word: &[u8], digits: usize) -> Class {
    if digits == 0 {
        let plain = word[0].is_ascii_lowercase() && word.len() < 32 && !(word.len() == 2 && word[1] | 0x20 == b'm');
        return if plain { Class::Text } else { without_digits(word) };
    }
    let letters = word.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    if is_time(word, digits, letters) {
        return Class::Time;
    }
    let ordinal = letters == 2 && [&b"st"[..], b"nd", b"rd", b"th"].iter().any(|end| word.ends_with(end));
    if letters == 0 && memchr::memchr_iter(b'-', word).count() < 2 || ordinal {
        return Class::Number;
    }
    Class::Id
}

fn without_digits(word: &[u8]) -> Class {
    if word.len() > 9 {
        let hexadecimal = word.len() >= 32 && word.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
        return if hexadecimal { Class::Id } else { Class::Text };
    }
    let mut lower = [0; 9];
    for (to, byte) in lower.iter_mut().zip(word) {
        *to = byte.to_ascii_lowercase();
    }
    let lower = &lower[..word.len()];
    // "may", "march", "sat", "sun", "mar" and the like are words, too: as names they begin with a capital letter.
    let named = word[0].is_ascii_uppercase() && (NAMES.contains(&lower) || LONG_NAMES.contains(&lower));
    if named || matches!(lower, b"am" | b"pm") { Class::Time } else { Class::Text }
}

fn is_time(word: &[u8], digits: usize, letters: usize) -> bool {
    if letters == 0 && digits == word.len() {
        return is_stamp(word);
    }
    let marked = || std::str::from_utf8(word).is_ok_and(|text| MARKS.iter().any(|mark| text.contains(mark)));
    if word.iter().any(|byte| *byte >= 0x80) {
        return marked();
    }
    let before_noon = letters == 2
        && (word.ends_with(b"am") || word.ends_with(b"pm") || word.ends_with(b"PM") || word.ends_with(b"AM"));
    is_clock(word) || is_date(word) || before_noon
}

/// Seconds or milliseconds since 1970 in this century, or a date as eight digits.
fn is_stamp(word: &[u8]) -> bool {
    match word.len() {
        10 | 13 => matches!(word[0], b'1' | b'2'),
        8 => (word.starts_with(b"19") || word.starts_with(b"20")) && within_year(&word[4..6], &word[6..8]),
        _ => false,
    }
}

/// As in 9:05, 09:05:59.123 or 09:05:59+00:00.
fn is_clock(word: &[u8]) -> bool {
    let hours = word.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let shape = (1..=2).contains(&hours) && word.get(hours) == Some(&b':');
    shape && word.get(hours + 1).is_some_and(u8::is_ascii_digit) && word.get(hours + 2).is_some_and(u8::is_ascii_digit)
}

/// Three numbers between hyphens, slashes or dots, as in 2026-11-27 and 27.11.2026, whatever time follows.
fn is_date(word: &[u8]) -> bool {
    let Some(between) = word.iter().find(|byte| !byte.is_ascii_digit()) else { return false };
    if !matches!(between, b'-' | b'/' | b'.') {
        return false;
    }
    let mut numbers = word.splitn(3, |byte| byte == between);
    let (Some(first), Some(second), Some(rest)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return false;
    };
    let third = &rest[..rest.iter().take_while(|byte| byte.is_ascii_digit()).count()];
    let after = rest.get(third.len()).is_none_or(|byte| matches!(byte, b'T' | b':' | b'.'));
    let year_first = first.len() == 4 && within_year(second, third);
    let year_last = matches!(third.len(), 2 | 4) && (within_year(second, first) || within_year(first, second));
    after && (year_first || year_last)
}

/// Whether two numbers may be a month and a day.
fn within_year(month: &[u8], day: &[u8]) -> bool {
    let value = |digits: &[u8]| -> Option<u32> { std::str::from_utf8(digits).ok()?.parse().ok() };
    let short = (1..=2).contains(&month.len()) && (1..=2).contains(&day.len());
    short
        && value(month).is_some_and(|month| (1..=12).contains(&month))
        && value(day).is_some_and(|day| (1..=31).contains(&day))
}

/// What changed between two texts at the first place where they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: Class,
    /// Words of the new text behind the change that the old one ends with, too, in thousandths of all.
    pub same_after: usize,
}

/// Words that a change of a time or an id may have.
const MOST_CHANGED: usize = 12;
/// Words that follow a change, by which two texts are found to be in step again.
const IN_STEP: usize = 4;

/// Compare two texts that are not equal.
#[must_use]
pub fn change(old: &[Word], new: &[Word]) -> Change {
    let first = old.iter().zip(new).take_while(|(one, other)| one == other).count();
    let (before, after) = (&old[first..], &new[first..]);
    let same = before.iter().rev().zip(after.iter().rev()).take_while(|(one, other)| one == other).count();
    let same_after = if new.is_empty() { 0 } else { 1000 * same / new.len() };
    let kind = span(before, after).map_or(Class::Text, |(from, to)| kind(old, new, first, (from, to)));
    Change { kind, same_after }
}

/// The lengths of the changed words of both, up to where they are in step again; None where they are not soon.
fn span(before: &[Word], after: &[Word]) -> Option<(usize, usize)> {
    let in_step = |from: usize, to: usize| {
        let (one, other) = (&before[from..], &after[to..]);
        let most = IN_STEP.min(one.len()).min(other.len());
        one[..most] == other[..most] && (most == IN_STEP || one.len() == other.len())
    };
    let most = |words: &[Word]| words.len().min(MOST_CHANGED);
    for changed in 0..=most(before) + most(after) {
        for from in changed.saturating_sub(most(after))..=changed.min(most(before)) {
            if in_step(from, changed - from) {
                return Some((from, changed - from));
            }
        }
    }
    None
}

fn kind(old: &[Word], new: &[Word], first: usize, (from, to): (usize, usize)) -> Class {
    let (was, is) = (&old[first..first + from], &new[first..first + to]);
    let mut classes = was.iter().chain(is).map(|word| word.class());
    if was.is_empty() || is.is_empty() || classes.clone().any(|class| class == Class::Text) {
        return Class::Text;
    }
    // A number belongs to a date where the words beside it do, with numbers between.
    let next =
        |words: &mut dyn Iterator<Item = &Word>| words.map(|word| word.class()).find(|class| *class != Class::Number);
    let beside = [next(&mut new[..first].iter().rev()), next(&mut new[first + to..].iter())];
    let near = beside.contains(&Some(Class::Time));
    let number = classes.clone().all(|class| class == Class::Number);
    if classes.any(|class| class == Class::Time) || number && near { Class::Time } else { Class::Id }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class_of(word: &str) -> Class {
        let found = words(word.as_bytes(), 7);
        assert_eq!(found.len(), 1, "{word}");
        found[0].class()
    }

    #[test]
    fn words_have_classes() {
        for word in [
            "2026-11-27",
            "11/27/2026",
            "27.11.2026",
            "2026-11-27T09:05:59Z",
            "9:05",
            "23:59:01",
            "1795771234",
            "1795771234123",
            "20261127",
            "5pm",
            "Monday",
            "Nov",
            "2026年11月27日",
            "09:05:59.123+00:00",
            "PM",
        ] {
            assert_eq!(class_of(word), Class::Time, "{word}");
        }
        for word in
            ["3f2504e0-4f89-11d3-9a0c-0305e82c3301", "req_01HZX3", "a1b2c3d4", "abcdefab-cdef-abcd-efab-cdefabcdefab"]
        {
            assert_eq!(class_of(word), Class::Id, "{word}");
        }
        for word in ["17", "3.14", "27th", "1999"] {
            assert_eq!(class_of(word), Class::Number, "{word}");
        }
        for word in ["may", "hello", "sat", "don", "日本"] {
            assert_eq!(class_of(word), Class::Text, "{word}");
        }
    }

    #[test]
    fn words_are_those_that_are_spelt_wherever_they_are() {
        let letters = b"abmpAZ09-:./_+ ,\n\"\xc3\xa9am";
        let mut state = 1;
        for length in 0..400 {
            let mut next = || {
                state = crate::mixing::splitmix64(state);
                letters[usize::try_from(state >> 32).unwrap() % (if length % 3 == 0 { 4 } else { letters.len() })]
            };
            let text: Vec<u8> = (0..length).map(|_| next()).collect();
            let spelt = spelt(&text).map(|(_, word, class)| Word::with(word_digest(word, 7), class));
            assert_eq!(words(&text, 7), spelt.collect::<Vec<_>>(), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_changed_time_or_id_is_told_from_other_text() {
        let kind = |old: &str, new: &str| change(&words(old.as_bytes(), 7), &words(new.as_bytes(), 7)).kind;
        let rest = "You help people with their questions about trains.";
        for (old, new, expected) in [
            ("Today is 2026-11-27.", "Today is 2026-11-28.", Class::Time),
            ("Today is Friday, November 27, 2026.", "Today is Saturday, November 28, 2026.", Class::Time),
            ("It is November 9.", "It is November 10.", Class::Time),
            ("It is 27 November 2026.", "It is 27 November 2027.", Class::Time),
            ("At 9:05:01 session 4711 began.", "At 9:05:01 session 4712 began.", Class::Id),
            ("Time: 9:05:01 PM", "Time: 10:15:44 AM", Class::Time),
            ("Session 7f3a9c01", "Session b81e55f2", Class::Id),
            ("Request 17 of", "Request 18 of", Class::Id),
            ("You are Ann.", "You are Bob.", Class::Text),
            ("Answer in English.", "Answer in French, please.", Class::Text),
        ] {
            assert_eq!(kind(&format!("{old} {rest}"), &format!("{new} {rest}")), expected, "{old}");
        }
        assert_eq!(kind("12 apples are sold", "7 pears were given away to nobody"), Class::Text);
    }

    #[test]
    fn what_follows_a_change_is_measured() {
        let found = change(&words(b"a 1 b c d e f g h i", 7), &words(b"a 2 b c d e f g h i", 7));
        assert_eq!(found, Change { kind: Class::Id, same_after: 800 });
    }

    #[test]
    fn normal_texts_differ_by_more_than_times_and_ids() {
        let of = |text: &str| normal(&words(text.as_bytes(), 7), 7);
        assert_eq!(of("At 9:05 on November 9 see req_77aa."), of("At 11:45 on 2026-11-10 see x1y2z3."));
        assert_ne!(of("At 9:05 see it."), of("At 9:05 hear it."));
    }
}
