//! Delta and Snapshot frames, as `core/cachefleet_core/report_frames.py` defines and bounds them: msgpack in, operations out.
//!
//! A frame is applied whole or not at all: everything is checked here first.

use crate::digest::Tier;
use crate::index::{Operation, Seen, check};
use crate::msgpack::{self, Wrong};
use crate::reader::{Reader, unpack};
use std::borrow::Cow;

const MAX_BYTES: usize = 4 * 1024 * 1024;
const MAX_KEYS: usize = 131_072;
const MAX_OPERATIONS: u32 = 16_384;
const MAX_RANK: u64 = 4095;

/// Why bytes are no valid frame: the field and what is wrong with it, never its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError {
    pub field: &'static str,
    pub why: &'static str,
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}: {}", self.field, self.why)
    }
}

fn error(field: &'static str, why: &'static str) -> FrameError {
    FrameError { field, why }
}

trait Named<T> {
    /// The value, or an error that names this field.
    fn of(self, field: &'static str) -> Result<T, FrameError>;
}

impl<T> Named<T> for Result<T, Wrong> {
    fn of(self, field: &'static str) -> Result<T, FrameError> {
        self.map_err(|Wrong(why)| error(field, why))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Delta,
    /// One part of a snapshot.
    Snapshot {
        part: u64,
        last: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    pub rank: u64,
    pub sequence: u64,
    pub operations: Vec<Operation<'static>>,
}

/// Fields of a frame, which come in any order.
#[derive(Default)]
struct Fields<'a> {
    kind: Option<&'a [u8]>,
    rank: Option<u64>,
    sequence: Option<u64>,
    part: Option<u64>,
    last: Option<bool>,
    operations: Option<Reader<'a>>,
    chains: Option<Reader<'a>>,
}

impl Frame {
    /// Decodes a Delta or Snapshot frame.
    ///
    /// # Errors
    /// The bytes are no such frame, or exceed a bound.
    pub fn decode(data: &[u8], seen: &mut Seen) -> Result<Self, FrameError> {
        let fields = Fields::read(data)?;
        let missing = |field| move || error(field, "missing");
        let sequence = fields.sequence.ok_or_else(missing("sequence"))?;
        let rank = fields.rank.unwrap_or(0);
        if rank > MAX_RANK {
            return Err(error("rank", "too large"));
        }
        let (kind, operations) = match fields.kind {
            Some(b"delta") => {
                (Kind::Delta, operations(fields.operations.ok_or_else(missing("operations"))?, "operations", seen)?)
            }
            Some(b"snapshot") => {
                let part = fields.part.ok_or_else(missing("part"))?;
                let last = fields.last.ok_or_else(missing("last"))?;
                let chains = fields.chains.map_or(Ok(Vec::new()), |chains| operations(chains, "chains", seen))?;
                (Kind::Snapshot { part, last }, chains)
            }
            Some(_) => return Err(error("type", "neither delta nor snapshot")),
            None => return Err(error("type", "missing")),
        };
        Ok(Self { kind, rank, sequence, operations })
    }

    /// The rank of a State frame, whose other fields are Python's to read; None of any other.
    #[must_use]
    pub fn state_rank(data: &[u8]) -> Option<u64> {
        let fields = Fields::read(data).ok().filter(|fields| fields.kind == Some(b"state"))?;
        Some(fields.rank.unwrap_or(0))
    }

    /// Number of keys in all its operations.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.operations.iter().map(|operation| operation.keys().len()).sum()
    }
}

impl<'a> Fields<'a> {
    fn read(data: &'a [u8]) -> Result<Self, FrameError> {
        if data.len() > MAX_BYTES {
            return Err(error("frame", "too large"));
        }
        let mut input = Reader::new(data);
        let mut fields = Self::default();
        for _ in 0..msgpack::map(&mut input).of("frame")? {
            let name = msgpack::text(&mut input).of("frame")?;
            fields.take(name, &mut input)?;
        }
        if input.is_empty() { Ok(fields) } else { Err(error("frame", "more than one value")) }
    }

    fn take(&mut self, name: &[u8], input: &mut Reader<'a>) -> Result<(), FrameError> {
        match name {
            b"type" => once(&mut self.kind, msgpack::text(input).of("type")?, "type"),
            b"rank" => once(&mut self.rank, msgpack::number(input).of("rank")?, "rank"),
            b"sequence" => once(&mut self.sequence, msgpack::number(input).of("sequence")?, "sequence"),
            b"part" => once(&mut self.part, msgpack::number(input).of("part")?, "part"),
            b"last" => once(&mut self.last, msgpack::truth(input).of("last")?, "last"),
            b"operations" => once(&mut self.operations, value(input, "operations")?, "operations"),
            b"chains" => once(&mut self.chains, value(input, "chains")?, "chains"),
            _ => msgpack::skip(input).of("frame"),
        }
    }
}

fn once<T>(field: &mut Option<T>, value: T, name: &'static str) -> Result<(), FrameError> {
    if field.replace(value).is_some() { Err(error(name, "given twice")) } else { Ok(()) }
}

/// Skips a value; returns a reader of it for later, when the frame's type is known.
fn value<'a>(input: &mut Reader<'a>, name: &'static str) -> Result<Reader<'a>, FrameError> {
    let start = *input;
    msgpack::skip(input).of(name)?;
    Ok(start)
}

fn operations(mut input: Reader, name: &'static str, seen: &mut Seen) -> Result<Vec<Operation<'static>>, FrameError> {
    let count = msgpack::array(&mut input).of(name)?;
    if count > MAX_OPERATIONS {
        return Err(error(name, "too many"));
    }
    let mut keys = 0;
    let mut all = Vec::new();
    for _ in 0..count {
        let operation = operation(&mut input, name)?;
        if name == "chains" && !matches!(operation, Operation::Stored { .. }) {
            return Err(error(name, "not a chain"));
        }
        check_one(&operation, seen)?;
        keys += operation.keys().len();
        if keys > MAX_KEYS {
            return Err(error("keys", "too many in one frame"));
        }
        all.push(operation);
    }
    Ok(all)
}

fn check_one(operation: &Operation, seen: &mut Seen) -> Result<(), FrameError> {
    check(operation, seen).map_err(|wrong| error("keys", wrong.why()))
}

fn operation(input: &mut Reader, name: &'static str) -> Result<Operation<'static>, FrameError> {
    let wrong = error(name, "not an operation");
    let mut left = msgpack::array(input).of(name)?.checked_sub(1).ok_or(wrong)?;
    let mut next = || left.checked_sub(1).map(|fewer| left = fewer).ok_or(wrong);
    let operation = match msgpack::number(input).of(name)? {
        0 => {
            next()?;
            let parent = msgpack::number(input).of("parent")?;
            next()?;
            Operation::Stored { parent, keys: keys(input)?, tier: tier(input, next().is_ok())? }
        }
        1 => {
            next()?;
            Operation::Removed { keys: keys(input)?, tier: tier(input, next().is_ok())? }
        }
        2 => Operation::Cleared,
        _ => return Err(wrong),
    };
    for _ in 0..left {
        msgpack::skip(input).of(name)?;
    }
    Ok(operation)
}

fn keys(input: &mut Reader) -> Result<Cow<'static, [u64]>, FrameError> {
    let packed = msgpack::binary(input).of("keys")?;
    if packed.len() > 8 * MAX_KEYS {
        return Err(error("keys", "too many in one frame"));
    }
    unpack(packed).map(Cow::Owned).ok_or(error("keys", "packed keys must be a multiple of 8 bytes"))
}

fn tier(input: &mut Reader, given: bool) -> Result<Tier, FrameError> {
    if !given {
        return Ok(Tier::Device);
    }
    Tier::from_number(msgpack::number(input).of("tier")?).ok_or(error("tier", "must be 0 (device) or 1 (host)"))
}
