//! Reads the token ids of a JSON request body, an array of integers in one field, without building anything else.
//!
//! Text around the array is skipped, not validated: its grammar is checked only as far as finding the field takes. The
//! array itself must have integers from 0 to 2**32 - 1, as JSON writes them.

use memchr::memchr2;

/// Bound on nested objects and arrays.
const MAX_DEPTH: usize = 1000;

/// What is wrong with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonError {
    /// Not an object, or one that ends too soon.
    Object,
    /// The field is not there.
    Missing,
    /// It is no array of token ids.
    Tokens,
}

impl std::fmt::Display for JsonError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(match self {
            Self::Object => "body: not a JSON object",
            Self::Missing => "body: has no such field",
            Self::Tokens => "tokens: must be an array of integers from 0 to 4294967295",
        })
    }
}

/// The integers of the array in `body`'s field `name`; in the last where it occurs several times, as in other readers.
///
/// # Errors
/// There is no such array.
pub fn tokens(body: &[u8], name: &[u8]) -> Result<Vec<u32>, JsonError> {
    let mut found = None;
    let mut at = expect(body, 0, b'{').ok_or(JsonError::Object)?;
    if expect(body, at, b'}').is_none() {
        loop {
            let start = expect(body, at, b'"').ok_or(JsonError::Object)?;
            let end = string_end(body, start).ok_or(JsonError::Object)?;
            let value = expect(body, end, b':').ok_or(JsonError::Object)?;
            at = if body[start..end - 1] == *name {
                let mut numbers = Vec::with_capacity((body.len() - value) / 4);
                let after = array(body, value, &mut numbers).ok_or(JsonError::Tokens)?;
                found = Some(numbers);
                after
            } else {
                value_end(body, value).ok_or(JsonError::Object)?
            };
            match expect(body, at, b',') {
                Some(next) => at = next,
                None if expect(body, at, b'}').is_some() => break,
                None => return Err(JsonError::Object),
            }
        }
    }
    found.ok_or(JsonError::Missing)
}

pub(crate) fn blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The index after `byte`, where it comes next apart from white space.
#[inline]
pub(crate) fn expect(body: &[u8], mut at: usize, byte: u8) -> Option<usize> {
    while blank(*body.get(at)?) {
        at += 1;
    }
    (body[at] == byte).then_some(at + 1)
}

/// The index after the quote that ends a string.
pub(crate) fn string_end(body: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        at += memchr2(b'"', b'\\', body.get(at..)?)?;
        if body[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The index of the first 32 bytes of which one is a quote or a bracket, as after long lists of numbers.
#[inline]
fn past_plain(body: &[u8], start: usize) -> usize {
    let rest = body.get(start..).unwrap_or_default();
    let matters = |byte: u8| byte == b'"' || matches!(byte | 0x20, b'{' | b'}');
    let plain = |bytes: &&[u8; 32]| !bytes.iter().fold(false, |any, byte| any | matters(*byte));
    start + 32 * rest.as_chunks::<32>().0.iter().take_while(plain).count()
}

/// The index after a value.
pub(crate) fn value_end(body: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0;
    let mut at = start;
    loop {
        match *body.get(at)? {
            b'"' => at = string_end(body, at + 1)?,
            b'[' | b'{' => {
                depth += 1;
                at += 1;
            }
            b']' | b'}' if depth > 0 => {
                depth -= 1;
                at += 1;
            }
            b',' | b']' | b'}' if depth == 0 => return (at > start).then_some(at),
            b'0'..=b'9' if depth > 0 => at = past_plain(body, at + 1),
            _ => at += 1,
        }
        if depth > MAX_DEPTH {
            return None;
        }
        if depth == 0 && matches!(body[at - 1], b'"' | b']' | b'}') {
            return Some(at);
        }
    }
}

/// Reads an array of integers; returns the index after it.
fn array(body: &[u8], start: usize, numbers: &mut Vec<u32>) -> Option<usize> {
    let mut at = expect(body, start, b'[')?;
    if let Some(end) = expect(body, at, b']') {
        return Some(end);
    }
    loop {
        at = compact(body, at, numbers);
        while blank(*body.get(at)?) {
            at += 1;
        }
        let (number, after) = integer(body, at)?;
        numbers.push(number);
        match expect(body, after, b',') {
            Some(next) => at = next,
            None => return expect(body, after, b']'),
        }
    }
}

/// One integer, digit by digit.
fn integer(body: &[u8], start: usize) -> Option<(u32, usize)> {
    let digits = body[start..].iter().take(11).take_while(|byte| byte.is_ascii_digit()).count();
    let first = *body.get(start)?;
    if digits == 0 || digits > 10 || (first == b'0' && digits > 1) {
        return None;
    }
    let value = |sum: u64, byte: &u8| 10 * sum + u64::from(byte - b'0');
    let number = body[start..start + digits].iter().fold(0, value);
    Some((u32::try_from(number).ok()?, start + digits))
}

/// Bytes that are classified together.
const WINDOW: usize = 64;
/// Bytes read beyond a window: a number is read as one word, which may end there.
const BEYOND: usize = 8;

/// Classes of a window's bytes: for each class a mask with one bit per byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kinds {
    commas: u64,
    spaces: u64,
    zeros: u64,
    digits: u64,
}

/// Reads integers of up to eight digits, each behind at most a space and before a comma, from windows of 64 bytes;
/// returns the index of the first that is left.
///
/// The numbers of a window are checked all at once, so that none waits for the one before and none is checked twice.
fn compact(body: &[u8], start: usize, numbers: &mut Vec<u32>) -> usize {
    let mut at = start;
    while let Some(window) = body.get(at..).and_then(|rest| rest.first_chunk::<{ WINDOW + BEYOND }>()) {
        let kinds = Kinds::of(window);
        if kinds.commas == 0 || kinds.odd() != 0 {
            break;
        }
        let mut read = [0; WINDOW / 2];
        let mut from = 0;
        let mut commas = kinds.commas;
        let mut count = 0;
        while commas != 0 {
            let comma = commas.trailing_zeros() as usize;
            from += (kinds.spaces >> from & 1) as usize;
            read[count] = word(window, from, comma - from);
            count += 1;
            from = comma + 1;
            commas &= commas - 1;
        }
        numbers.extend_from_slice(&read[..count]);
        at += from;
    }
    at
}

impl Kinds {
    /// Bits of bytes up to the last comma that `compact` cannot read.
    #[inline]
    fn odd(self) -> u64 {
        let Self { commas, spaces, zeros, digits } = self;
        let after = commas << 1 | 1;
        let spaced = spaces & after;
        let starts = after & !spaces | spaced << 1;
        let strange = !(digits | commas | spaced);
        let leading_zero = starts & zeros & !(commas >> 1);
        let two = digits & digits >> 1;
        let four = two & two >> 2;
        let nine = four & four >> 4 & digits >> 8;
        let before_last = u64::MAX >> commas.leading_zeros();
        (strange | starts & commas | leading_zero | nine) & before_last
    }
}

/// The number written as `digits` digits, 1 to 8, from `from` on.
#[inline]
fn word(window: &[u8; WINDOW + BEYOND], from: usize, digits: usize) -> u32 {
    let from = from % WINDOW;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&window[from..from + 8]);
    // Digits as numbers, the first lowest, and zeros for those that are not there.
    let kept = (u64::from_le_bytes(bytes) ^ 0x3030_3030_3030_3030) << (64 - 8 * digits);
    let pairs = kept.wrapping_mul(10 << 8 | 1) >> 8 & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_FFFF_0000_FFFF;
    (fours.wrapping_mul(10_000 << 32 | 1) >> 32) as u32
}

impl Kinds {
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[expect(unsafe_code, reason = "measured: an array is read half again as fast; proof within")]
    fn of(window: &[u8; WINDOW + BEYOND]) -> Self {
        use std::arch::x86_64::{
            _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8, _mm_xor_si128,
        };
        let mut kinds = Self { commas: 0, spaces: 0, zeros: 0, digits: 0 };
        for (number, part) in window[..WINDOW].as_chunks::<16>().0.iter().enumerate() {
            let (words, _) = part.as_chunks::<8>();
            // SAFETY: these work on values in registers alone, and ask for SSE2, which every x86_64 has.
            let [commas, spaces, zeros, digits] = unsafe {
                let bytes = _mm_set_epi64x(i64::from_le_bytes(words[1]), i64::from_le_bytes(words[0]));
                let same = |byte: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte.cast_signed()));
                // A digit xor this is one of the ten least signed bytes.
                let moved = _mm_xor_si128(bytes, _mm_set1_epi8((b'0' ^ 0x80).cast_signed()));
                let digits = _mm_cmplt_epi8(moved, _mm_set1_epi8(-128 + 10));
                [same(b','), same(b' '), same(b'0'), digits].map(|found| _mm_movemask_epi8(found).cast_unsigned())
            };
            let at = |bits: u32| u64::from(bits) << (16 * number);
            kinds.commas |= at(commas);
            kinds.spaces |= at(spaces);
            kinds.zeros |= at(zeros);
            kinds.digits |= at(digits);
        }
        kinds
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of(window: &[u8; WINDOW + BEYOND]) -> Self {
        Self::portable(window)
    }

    /// The same as `of`, byte by byte.
    #[cfg_attr(target_arch = "x86_64", cfg(test))]
    fn portable(window: &[u8; WINDOW + BEYOND]) -> Self {
        let bits = |is: fn(&u8) -> bool| {
            window[..WINDOW].iter().enumerate().fold(0, |mask, (at, byte)| mask | u64::from(is(byte)) << at)
        };
        Self {
            commas: bits(|byte| *byte == b','),
            spaces: bits(|byte| *byte == b' '),
            zeros: bits(|byte| *byte == b'0'),
            digits: bits(u8::is_ascii_digit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mixing::splitmix64;

    #[test]
    fn windows_are_classified_as_byte_by_byte() {
        for seed in 0..20_000 {
            let byte = |at: usize| {
                let random = splitmix64(seed * 100 + at as u64);
                if random >> 60 == 0 { (random & 0xFF) as u8 } else { b"0123456789, ,0"[(random % 14) as usize] }
            };
            let window = std::array::from_fn(byte);
            assert_eq!(Kinds::of(&window), Kinds::portable(&window), "{window:?}");
        }
    }
}
