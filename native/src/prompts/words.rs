//! A text as words: for each a few bits of a keyed digest, and its class, which tells a time or an id from other text.

use super::{digest_of, joined, short_digest, word_digest};

/// Words kept of one part.
pub const MOST_WORDS: usize = 16_384;
const CLASS_BITS: u32 = 3;
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

/// The words of a text, the first `MOST_WORDS`; its bytes are looked at `WINDOW` at a time.
#[must_use]
pub fn words(text: &[u8], secret: u64) -> Vec<Word> {
    let mut found = Found { text, secret, words: Vec::with_capacity((text.len() / 4 + WINDOW).min(MOST_WORDS)) };
    let mut at = 0;
    while at < text.len() && found.words.len() < MOST_WORDS {
        at += match text[at..].first_chunk() {
            Some(window) => found.window(at, window),
            None => found.window(at, &filled(&text[at..])),
        };
    }
    found.words.truncate(MOST_WORDS);
    found.words
}

/// Bytes that are looked at together.
const WINDOW: usize = 64;
/// Bytes read beyond a window: a word is read as one number or two, which may end there.
const BEYOND: usize = 8;
type Window = [u8; WINDOW + BEYOND];

/// The last bytes of a text, and none within words behind them.
fn filled(rest: &[u8]) -> Window {
    let mut window = [0; WINDOW + BEYOND];
    window[..rest.len()].copy_from_slice(rest);
    window
}

/// Words as they are found in a text.
struct Found<'a> {
    text: &'a [u8],
    secret: u64,
    words: Vec<Word>,
}

impl Found<'_> {
    /// Read the runs of bytes within words that begin in the window from a byte on, up to one that does not end there;
    /// bytes that are read.
    fn window(&mut self, at: usize, window: &Window) -> usize {
        let (within, small) = masks(window);
        let (mut begins, mut ends) = (within & !(within << 1), !within & within << 1);
        let mut read = [Word(0); WINDOW / 2];
        let mut count = 0;
        while ends != 0 {
            let (from, end) = (begins.trailing_zeros() as usize, ends.trailing_zeros() as usize);
            (begins, ends) = (begins & (begins - 1), ends & (ends - 1));
            let plain = (within & !small) >> from << (WINDOW - (end - from)) == 0;
            let word = match small_digest(window, from, end, self.secret) {
                Some(digest) if plain => Word::with(digest, Class::Text),
                _ => match self.other(&self.text[at + from..at + end]) {
                    Some(word) => word,
                    None => continue,
                },
            };
            read[count % (WINDOW / 2)] = word;
            count += 1;
        }
        self.words.extend_from_slice(&read[..count]);
        match begins.trailing_zeros() as usize {
            0 => self.long(at),
            open => open,
        }
    }

    /// Read a run that is longer than a window; its length.
    fn long(&mut self, at: usize) -> usize {
        let rest = &self.text[at..];
        let run = &rest[..rest.iter().position(|byte| !within(*byte)).unwrap_or(rest.len())];
        self.words.extend(self.other(run));
        run.len()
    }

    /// The word that is a run of any bytes within words; None where there is nothing but punctuation.
    fn other(&self, run: &[u8]) -> Option<Word> {
        let (word, digits) = read(run);
        (!word.is_empty()).then(|| Word::with(word_digest(word, self.secret), class(word, digits)))
    }
}

/// The digest of a word of small letters between two places of a window; None of one that is long, or may be a time.
#[inline]
fn small_digest(window: &Window, from: usize, end: usize, secret: u64) -> Option<u64> {
    let number = |at: usize| {
        let at = at % WINDOW;
        u64::from_le_bytes(window[at..at + 8].try_into().unwrap_or_default())
    };
    let length = end - from;
    if length > 8 {
        return (length <= 16).then(|| digest_of(number(from), number(end - 8), length, secret));
    }
    let word = number(from) & u64::MAX >> (64 - 8 * length);
    // "am" and "pm" say that a number is a time.
    (word >> 8 != u64::from(b'm')).then(|| short_digest(word, secret))
}

/// Which bytes of a window are within words, and which are small letters: a bit for each.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "measured: a third of the instructions of a byte's reading; proof within")]
fn masks(window: &Window) -> (u64, u64) {
    use std::arch::x86_64::{
        __m128i, _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8,
        _mm_sub_epi8,
    };
    let (mut within, mut small) = (0, 0);
    for (number, part) in window[..WINDOW].as_chunks::<16>().0.iter().enumerate() {
        let (words, _) = part.as_chunks::<8>();
        // SAFETY: these work on values in registers alone, and ask for SSE2, which every x86_64 has.
        let (words, letters) = unsafe {
            let all = |byte: u8| _mm_set1_epi8(byte.cast_signed());
            // Bytes among some from one on, which are moved to the least of signed numbers.
            let among = |bytes: __m128i, first: u8, count: u8| {
                _mm_cmplt_epi8(_mm_sub_epi8(bytes, all(first ^ 0x80)), all(count ^ 0x80))
            };
            let bytes = _mm_set_epi64x(i64::from_le_bytes(words[1]), i64::from_le_bytes(words[0]));
            let letters = among(_mm_or_si128(bytes, all(0x20)), b'a', 26);
            let joints = _mm_or_si128(_mm_cmpeq_epi8(bytes, all(b'_')), _mm_cmpeq_epi8(bytes, all(b'+')));
            let signs = _mm_or_si128(among(bytes, b'-', b':' - b'-' + 1), joints);
            // Of a byte from 0x80 on the highest bit is set.
            let words = _mm_or_si128(_mm_or_si128(letters, signs), bytes);
            (_mm_movemask_epi8(words).cast_unsigned(), _mm_movemask_epi8(among(bytes, b'a', 26)).cast_unsigned())
        };
        within |= u64::from(words) << (16 * number);
        small |= u64::from(letters) << (16 * number);
    }
    (within, small)
}

#[cfg(not(target_arch = "x86_64"))]
fn masks(window: &Window) -> (u64, u64) {
    portable_masks(window)
}

/// The same as `masks`, byte by byte.
#[cfg_attr(target_arch = "x86_64", cfg(test))]
fn portable_masks(window: &Window) -> (u64, u64) {
    let bits = |is: fn(u8) -> bool| {
        window[..WINDOW].iter().enumerate().fold(0, |mask, (at, byte)| mask | u64::from(is(*byte)) << at)
    };
    (bits(within), bits(|byte| byte.is_ascii_lowercase()))
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
    let (mut state, mut text) = (secret, true);
    for word in words {
        // A date is as many words as its writer likes: neighbours of a class count once.
        let before = std::mem::replace(&mut text, word.class() == Class::Text);
        if text || before {
            state = joined(state, if text { u64::from(word.0) } else { 1 });
        }
    }
    state
}

/// Whether a byte is within words: letters, digits, and the punctuation that may stand between them.
fn within(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'-'..=b':' | b'_' | b'+' | 0x80..)
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
    let named = word[0].is_ascii_uppercase() && named(lower);
    if named || matches!(lower, b"am" | b"pm") { Class::Time } else { Class::Text }
}

/// Whether a word in small letters is the name of a month or day.
#[rustfmt::skip]
fn named(word: &[u8]) -> bool {
    matches!(
        word,
        b"jan" | b"feb" | b"mar" | b"apr" | b"may" | b"jun" | b"jul" | b"aug" | b"sep" | b"sept" | b"oct" | b"nov"
        | b"dec" | b"mon" | b"tue" | b"tues" | b"wed" | b"thu" | b"thur" | b"thurs" | b"fri" | b"sat" | b"sun" | b"utc"
        | b"january" | b"february" | b"march" | b"april" | b"june" | b"july" | b"august" | b"september" | b"october"
        | b"november" | b"december" | b"monday" | b"tuesday" | b"wednesday" | b"thursday" | b"friday" | b"saturday"
        | b"sunday"
    )
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
    let first = same_first(old, new);
    let (before, after) = (&old[first..], &new[first..]);
    let same = same_last(before, after);
    let same_after = if new.is_empty() { 0 } else { 1000 * same / new.len() };
    let kind = span(before, after).map_or(Class::Text, |(from, to)| kind(old, new, first, (from, to)));
    Change { kind, same_after }
}

/// Words that are compared at once.
const AT_ONCE: usize = 16;

fn all_same(one: &[Word; AT_ONCE], other: &[Word; AT_ONCE]) -> bool {
    one.iter().zip(other).fold(0, |other_bits, (one, other)| other_bits | one.0 ^ other.0) == 0
}

/// How many words two texts begin with that are the same.
fn same_first(one: &[Word], other: &[Word]) -> usize {
    let pairs = one.as_chunks().0.iter().zip(other.as_chunks().0);
    let whole = AT_ONCE * pairs.take_while(|(one, other)| all_same(one, other)).count();
    whole + one[whole..].iter().zip(&other[whole..]).take_while(|(one, other)| one == other).count()
}

/// How many words they end with that are the same.
fn same_last(one: &[Word], other: &[Word]) -> usize {
    let pairs = one.as_rchunks().1.iter().rev().zip(other.as_rchunks().1.iter().rev());
    let whole = AT_ONCE * pairs.take_while(|(one, other)| all_same(one, other)).count();
    let rest = one[..one.len() - whole].iter().rev().zip(other[..other.len() - whole].iter().rev());
    whole + rest.take_while(|(one, other)| one == other).count()
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
    fn windows_are_read_as_byte_by_byte() {
        for seed in 0..2_000 {
            let random = |at: usize| crate::mixing::splitmix64(seed * 100 + at as u64);
            let window = std::array::from_fn(|at| (random(at) >> 56) as u8);
            assert_eq!(masks(&window), portable_masks(&window), "{window:?}");
        }
    }

    #[test]
    fn words_at_both_ends_are_counted_however_many_there_are() {
        let words = |count: usize, other: usize| (0..count).map(|at| Word(u32::from(at == other))).collect::<Vec<_>>();
        for count in 0..70 {
            for at in 0..=count {
                let (same, other) = (words(count, count), words(count, at));
                assert_eq!(same_first(&same, &other), at);
                assert_eq!(same_last(&same, &other), count.saturating_sub(at + 1) + usize::from(at == count) * count);
            }
            assert_eq!(
                (same_first(&words(count, 99), &words(70, 99)), same_last(&words(count, 99), &words(70, 99))),
                (count, count)
            );
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
