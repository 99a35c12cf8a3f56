//! Reads the part of `MessagePack` that frames use.

use crate::reader::{Reader, Short};

/// Bound on nesting in values that are skipped.
const MAX_DEPTH: u32 = 64;

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong(pub &'static str);

impl From<Short> for Wrong {
    fn from(Short: Short) -> Self {
        Self("the frame ends too soon")
    }
}

fn byte(input: &mut Reader) -> Result<u8, Wrong> {
    Ok(input.array::<1>()?[0])
}

/// A number of `bytes` bytes, big-endian.
fn big_endian(input: &mut Reader, bytes: usize) -> Result<u64, Wrong> {
    Ok(input.take(bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn length(input: &mut Reader, bytes: usize) -> Result<u32, Wrong> {
    u32::try_from(big_endian(input, bytes)?).map_err(|_| Wrong("too long"))
}

/// A map's number of entries.
pub fn map(input: &mut Reader) -> Result<u32, Wrong> {
    match byte(input)? {
        head @ 0x80..=0x8F => Ok(u32::from(head & 0x0F)),
        0xDE => length(input, 2),
        0xDF => length(input, 4),
        _ => Err(Wrong("not a map")),
    }
}

/// An array's number of items.
pub fn array(input: &mut Reader) -> Result<u32, Wrong> {
    match byte(input)? {
        head @ 0x90..=0x9F => Ok(u32::from(head & 0x0F)),
        0xDC => length(input, 2),
        0xDD => length(input, 4),
        _ => Err(Wrong("not an array")),
    }
}

/// The bytes of a text; UTF-8 is not checked.
pub fn text<'a>(input: &mut Reader<'a>) -> Result<&'a [u8], Wrong> {
    let bytes = match byte(input)? {
        head @ 0xA0..=0xBF => u32::from(head & 0x1F),
        0xD9 => length(input, 1)?,
        0xDA => length(input, 2)?,
        0xDB => length(input, 4)?,
        _ => return Err(Wrong("not a text")),
    };
    Ok(input.take(bytes as usize)?)
}

pub fn binary<'a>(input: &mut Reader<'a>) -> Result<&'a [u8], Wrong> {
    let bytes = match byte(input)? {
        0xC4 => length(input, 1)?,
        0xC5 => length(input, 2)?,
        0xC6 => length(input, 4)?,
        _ => return Err(Wrong("not bytes")),
    };
    Ok(input.take(bytes as usize)?)
}

/// An integer from 0 to 2**64 - 1, however it is written.
pub fn number(input: &mut Reader) -> Result<u64, Wrong> {
    let (bytes, signed) = match byte(input)? {
        head @ 0x00..=0x7F => return Ok(u64::from(head)),
        0xCC => (1, false),
        0xCD => (2, false),
        0xCE => (4, false),
        0xCF => (8, false),
        0xD0 => (1, true),
        0xD1 => (2, true),
        0xD2 => (4, true),
        0xD3 => (8, true),
        0xE0..=0xFF => return Err(Wrong("negative")),
        _ => return Err(Wrong("not an integer")),
    };
    let number = big_endian(input, bytes)?;
    if signed && number >> (8 * bytes - 1) == 1 { Err(Wrong("negative")) } else { Ok(number) }
}

pub fn truth(input: &mut Reader) -> Result<bool, Wrong> {
    match byte(input)? {
        0xC2 => Ok(false),
        0xC3 => Ok(true),
        _ => Err(Wrong("not true or false")),
    }
}

/// Skips one value of any type.
pub fn skip(input: &mut Reader) -> Result<(), Wrong> {
    skip_within(input, MAX_DEPTH)
}

fn skip_within(input: &mut Reader, depth: u32) -> Result<(), Wrong> {
    let deeper = depth.checked_sub(1).ok_or(Wrong("nested too deep"))?;
    let many = |input: &mut Reader, values: u64| (0..values).try_for_each(|_| skip_within(input, deeper));
    let bytes = match byte(input)? {
        0x00..=0x7F | 0xC0 | 0xC2 | 0xC3 | 0xE0..=0xFF => 0,
        head @ 0x80..=0x8F => return many(input, 2 * u64::from(head & 0x0F)),
        head @ 0x90..=0x9F => return many(input, u64::from(head & 0x0F)),
        head @ 0xA0..=0xBF => u32::from(head & 0x1F),
        0xC4 | 0xD9 => length(input, 1)?,
        0xC5 | 0xDA => length(input, 2)?,
        0xC6 | 0xDB => length(input, 4)?,
        0xC7 => length(input, 1)? + 1,
        0xC8 => length(input, 2)? + 1,
        0xC9 => length(input, 4)?.saturating_add(1),
        0xCC | 0xD0 => 1,
        0xCD | 0xD1 | 0xD4 => 2,
        0xCE | 0xD2 | 0xCA => 4,
        0xCF | 0xD3 | 0xCB => 8,
        0xD5 => 3,
        0xD6 => 5,
        0xD7 => 9,
        0xD8 => 17,
        0xDC => return length(input, 2).and_then(|items| many(input, items.into())),
        0xDD => return length(input, 4).and_then(|items| many(input, items.into())),
        0xDE => return length(input, 2).and_then(|entries| many(input, 2 * u64::from(entries))),
        0xDF => return length(input, 4).and_then(|entries| many(input, 2 * u64::from(entries))),
        0xC1 => return Err(Wrong("a byte that msgpack never uses")),
    };
    input.take(bytes as usize)?;
    Ok(())
}
