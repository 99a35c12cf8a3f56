//! The token ids of a JSON request body: one field of its object, an array of integers, found and read without building
//! anything else.
//!
//! What is around the array is gone past, not judged: only as much of its grammar is looked at as finding the field takes.
//! The array itself must be one of integers from 0 to 2**32 - 1, as JSON writes them.

/// Objects and arrays within each other, at most.
const MAX_DEPTH: usize = 128;

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

/// The integers of the array that is `body`'s field `name`; of the last where there are several, as other readers have it.
///
/// # Errors
/// There is none such.
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

fn blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// The place after a byte that comes next, white space aside.
#[inline]
fn expect(body: &[u8], mut at: usize, byte: u8) -> Option<usize> {
    while blank(*body.get(at)?) {
        at += 1;
    }
    (body[at] == byte).then_some(at + 1)
}

/// The place after the quote that ends a string.
fn string_end(body: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        at += body.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
        if body[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// The place after a value.
fn value_end(body: &[u8], start: usize) -> Option<usize> {
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

/// Reads an array of integers; gives the place after it.
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

/// Bytes looked at together.
const WINDOW: usize = 64;

/// Reads integers of up to eight digits, each behind at most a space and before a comma, from windows of 64 bytes; gives the
/// place of the first that is left.
///
/// Where commas are is known for a whole window at once, so that no number waits for the one before; what is between two
/// is read as one word and found to be digits, or left.
fn compact(body: &[u8], start: usize, numbers: &mut Vec<u32>) -> usize {
    // The word that ends before a comma begins before its number, so there must be bytes before it.
    let mut at = start.max(8);
    if at != start {
        return start;
    }
    while let Some(window) = body.get(at..).and_then(|rest| rest.first_chunk::<WINDOW>()) {
        let mut commas = commas(window);
        let mut from = at;
        while commas != 0 {
            let comma = at + commas.trailing_zeros() as usize;
            let spaced = usize::from(body[from] == b' ');
            let Some(number) = word(body, from + spaced, comma) else {
                return from;
            };
            numbers.push(number);
            from = comma + 1;
            commas &= commas - 1;
        }
        if from == at {
            break;
        }
        at = from;
    }
    at
}

/// The number whose digits are at `from..to`; None where that is none, or has more than eight digits.
#[inline]
fn word(body: &[u8], from: usize, to: usize) -> Option<u32> {
    let digits = to - from;
    let ending = u64::from_le_bytes(*body[..to].last_chunk::<8>()?);
    if !(1..=8).contains(&digits) {
        return None;
    }
    // Digits as numbers, the first lowest, and zeros for what comes before them.
    let kept = (ending ^ 0x3030_3030_3030_3030) >> (64 - 8 * digits) << (64 - 8 * digits);
    let high = kept | kept.wrapping_add(0x7676_7676_7676_7676);
    let leading_zero = digits > 1 && body[from] == b'0';
    if high & 0x8080_8080_8080_8080 != 0 || leading_zero {
        return None;
    }
    let pairs = kept.wrapping_mul(10 << 8 | 1) >> 8 & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_FFFF_0000_FFFF;
    Some((fours.wrapping_mul(10_000 << 32 | 1) >> 32) as u32)
}

/// Bit n: byte n is a comma.
#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "measured: an array is read half again as fast; proof within")]
fn commas(window: &[u8; WINDOW]) -> u64 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    window.as_chunks::<16>().0.iter().enumerate().fold(0, |mask, (number, part)| {
        let (words, _) = part.as_chunks::<8>();
        // SAFETY: these work on values in registers alone, and ask for SSE2, which every x86_64 has.
        let bits = unsafe {
            let bytes = _mm_set_epi64x(i64::from_le_bytes(words[1]), i64::from_le_bytes(words[0]));
            _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(b','.cast_signed())))
        };
        mask | u64::from(bits.cast_unsigned()) << (16 * number)
    })
}

/// Bit n: byte n is a comma.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn commas(window: &[u8; WINDOW]) -> u64 {
    window.iter().enumerate().fold(0, |mask, (number, byte)| mask | u64::from(*byte == b',') << number)
}
