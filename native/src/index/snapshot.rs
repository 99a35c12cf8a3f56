//! An index as bytes, for a replica that joins and for a restart.
//!
//! All numbers little-endian. Head: magic, version and zero (u32 each), length and checksum of the body (u64 each). Body:
//! workers (count, then names behind their lengths, UTF-8); sets (count, then members behind their count: places in the
//! list of workers, ascending); for each tier the runs: count, then for each its blocks, its pieces, a piece as end and
//! place in the list of sets, and the keys (u64). Counts and places are u32. Holes and forgotten workers are left out.

use super::arena::Arena;
use super::runs::{MAX_RUN, Run};
use super::sets::{SetId, Sets, Word};
use super::spans::{Piece, pieces};
use super::tier::Tier;
use super::{Index, Limits};
use crate::digest;
use crate::mixing::fold;
use crate::reader::{Reader, Short};
use std::collections::HashMap;

const MAGIC: [u8; 8] = *b"CFINDEX\0";
const VERSION: u32 = 1;
const HEAD: usize = 32;

/// Why bytes are no snapshot; it names the field. The index is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    Magic,
    Version(u32),
    Length,
    Checksum,
    /// More than the index may hold, of this.
    Bound(&'static str),
    Field(&'static str),
}

impl std::fmt::Display for SnapshotError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => to.write_str("magic: not a snapshot of an index"),
            Self::Version(version) => write!(to, "version: {version}, this reads {VERSION}"),
            Self::Length => to.write_str("length: not that of the body"),
            Self::Checksum => to.write_str("checksum: does not agree with the body"),
            Self::Bound(what) => write!(to, "{what}: more than the index may hold"),
            Self::Field(name) => write!(to, "{name}: not what an index writes"),
        }
    }
}

fn checksum(body: &[u8]) -> u64 {
    const KEYS: [u64; 2] = [0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7345];
    let (words, rest) = body.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    words.iter().chain(std::iter::once(&last)).fold(KEYS[0] ^ body.len() as u64, |sum, word| {
        fold(sum ^ u64::from_le_bytes(*word), KEYS[1]).wrapping_add(sum.rotate_left(23))
    })
}

// Writing.

impl Index {
    /// Everything it holds.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let mut body = Writer::new(self);
        body.workers();
        body.sets();
        for tier in &self.tiers {
            body.runs(tier);
        }
        body.finish()
    }
}

struct Writer {
    out: Vec<u8>,
    /// Place of each live set, by its number; sets of forgotten workers alone have none.
    sets: HashMap<SetId, u32>,
    members: Vec<Vec<u32>>,
    names: Vec<String>,
}

impl Writer {
    fn new(index: &Index) -> Self {
        let mut listed: Vec<(&str, u32)> = index.workers.iter().collect();
        listed.sort_unstable();
        let mut places = vec![0; index.workers.slots()];
        for (place, (_, slot)) in (0..).zip(&listed) {
            places[*slot as usize] = place;
        }
        let mut writer = Self {
            out: vec![0; HEAD],
            sets: HashMap::new(),
            members: Vec::new(),
            names: listed.iter().map(|(name, _)| (*name).to_owned()).collect(),
        };
        for tier in &index.tiers {
            for number in 0..tier.runs.len() {
                for span in tier.runs[number].spans() {
                    writer.learn(index, &places, span.set);
                }
            }
        }
        writer
    }

    fn learn(&mut self, index: &Index, places: &[u32], set: SetId) {
        if self.sets.contains_key(&set) {
            return;
        }
        let mut members: Vec<u32> =
            slots(&index.sets, set, index.workers.live()).map(|slot| places[slot as usize]).collect();
        if !members.is_empty() {
            members.sort_unstable();
            self.sets.insert(set, count(self.members.len()));
            self.members.push(members);
        }
    }

    fn number(&mut self, number: usize) {
        self.out.extend(count(number).to_le_bytes());
    }

    fn workers(&mut self) {
        let names = std::mem::take(&mut self.names);
        self.number(names.len());
        for name in names {
            self.number(name.len());
            self.out.extend(name.as_bytes());
        }
    }

    fn sets(&mut self) {
        let sets = std::mem::take(&mut self.members);
        self.number(sets.len());
        for members in sets {
            self.number(members.len());
            self.out.extend(members.iter().flat_map(|member| member.to_le_bytes()));
        }
    }

    fn runs(&mut self, tier: &Tier) {
        let start = self.out.len();
        self.number(0);
        let mut written = 0;
        for run in (0..tier.runs.len()).map(|number| &tier.runs[number]) {
            written += usize::from(self.run(&tier.arena, run));
        }
        self.out[start..start + 4].copy_from_slice(&count(written).to_le_bytes());
    }

    /// False where nobody alive holds any of it.
    fn run(&mut self, arena: &Arena, run: &Run) -> bool {
        let live: Vec<Piece> =
            pieces(run.spans(), 0, run.len()).filter(|piece| self.sets.contains_key(&piece.set)).collect();
        if live.is_empty() {
            return false;
        }
        self.number(live.iter().map(|piece| piece.len() as usize).sum());
        self.number(live.len());
        let mut end = 0;
        for piece in &live {
            end += piece.len() as usize;
            self.number(end);
            self.number(self.sets[&piece.set] as usize);
        }
        let keys = live.iter().flat_map(|piece| run.slices(arena, piece.start, piece.end)).flatten();
        self.out.extend(keys.flat_map(|key| key.to_le_bytes()));
        true
    }

    fn finish(mut self) -> Vec<u8> {
        let body = &self.out[HEAD..];
        let (length, sum) = (body.len() as u64, checksum(body));
        self.out[..8].copy_from_slice(&MAGIC);
        self.out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        self.out[16..24].copy_from_slice(&length.to_le_bytes());
        self.out[24..32].copy_from_slice(&sum.to_le_bytes());
        self.out
    }
}

fn slots<'a>(sets: &'a Sets, set: SetId, mask: &'a [u64]) -> impl Iterator<Item = u32> + 'a {
    sets.words(set).flat_map(|word| {
        let bits = word.bits & mask.get(word.number as usize).unwrap_or(&0);
        (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word.number * 64 + bit)
    })
}

fn count(number: usize) -> u32 {
    u32::try_from(number).expect("bounded by the index's limits")
}

// Reading.

impl Index {
    /// The index that bytes describe.
    ///
    /// # Errors
    /// They are no snapshot, or of more than `limits` allow.
    pub fn read(limits: Limits, data: &[u8]) -> Result<Self, SnapshotError> {
        let mut body = open(data)?;
        let mut index = Self::new(limits);
        index.read_workers(&mut body)?;
        let sets = index.read_sets(&mut body)?;
        for tier in digest::Tier::ALL {
            for _ in 0..body.u32().map_err(|Short| SnapshotError::Field("runs"))? {
                index.read_run(&mut body, tier, &sets)?;
            }
        }
        if body.is_empty() { Ok(index) } else { Err(SnapshotError::Field("length")) }
    }

    fn read_workers(&mut self, body: &mut Reader) -> Result<(), SnapshotError> {
        let wrong = SnapshotError::Field("workers");
        for _ in 0..body.u32().map_err(|Short| wrong)? {
            let length = body.u32().map_err(|Short| wrong)? as usize;
            let name = body.take(length).map_err(|Short| wrong)?;
            let name = std::str::from_utf8(name).map_err(|_| wrong)?;
            if self.workers.slot(name).is_some() {
                return Err(wrong);
            }
            if self.workers.len() >= self.limits.workers {
                return Err(SnapshotError::Bound("workers"));
            }
            self.workers.begin(name);
        }
        Ok(())
    }

    /// Sets as words: slots are places, in a fresh index.
    fn read_sets(&self, body: &mut Reader) -> Result<Vec<Vec<Word>>, SnapshotError> {
        let wrong = SnapshotError::Field("sets");
        let mut sets = Vec::new();
        for _ in 0..body.u32().map_err(|Short| wrong)? {
            let mut words: Vec<Word> = Vec::new();
            let mut least = 0;
            for _ in 0..body.u32().map_err(|Short| wrong)? {
                let member = body.u32().map_err(|Short| wrong)?;
                if member < least || member as usize >= self.workers.slots() {
                    return Err(wrong);
                }
                least = member + 1;
                let (number, bits) = (member / 64, 1 << (member % 64));
                match words.last_mut() {
                    Some(word) if word.number == number => word.bits |= bits,
                    _ => words.push(Word { number, bits }),
                }
            }
            if words.is_empty() {
                return Err(wrong);
            }
            sets.push(words);
        }
        Ok(sets)
    }

    fn read_run(&mut self, body: &mut Reader, tier: digest::Tier, sets: &[Vec<Word>]) -> Result<(), SnapshotError> {
        let wrong = SnapshotError::Field("runs");
        let blocks = body.u32().map_err(|Short| wrong)?;
        let listed = body.u32().map_err(|Short| wrong)?;
        if blocks == 0 || blocks > MAX_RUN || listed > blocks {
            return Err(wrong);
        }
        let spans = (0..listed)
            .map(|_| Ok((body.u32()?, body.u32()?)))
            .collect::<Result<Vec<_>, Short>>()
            .map_err(|Short| wrong)?;
        let ascending = spans.iter().is_sorted_by(|a, b| a.0 < b.0);
        if !ascending || spans.last().is_none_or(|last| last.0 != blocks) || spans[0].0 == 0 {
            return Err(wrong);
        }
        let run = self.tiers[tier as usize].open_run();
        let mut start = 0;
        for (end, set) in spans {
            let words = sets.get(set as usize).ok_or(wrong)?;
            let keys = body.keys((end - start) as usize).map_err(|Short| SnapshotError::Field("keys"))?;
            self.adopt(run, &keys, tier, words)?;
            start = end;
        }
        Ok(())
    }

    fn adopt(&mut self, run: u32, keys: &[u64], tier: digest::Tier, words: &[Word]) -> Result<(), SnapshotError> {
        let set = self.sets.intern(words.to_vec());
        if keys.contains(&0) || !self.tiers[tier as usize].adopt(&mut self.sets, run, keys, set) {
            return Err(SnapshotError::Field("keys"));
        }
        let sum = digest::digest(keys, tier);
        let members: Vec<u32> = slots(&self.sets, set, self.workers.live()).collect();
        for slot in members {
            let holdings = self.workers.holdings_mut(slot);
            holdings.blocks += keys.len() as u64;
            holdings.digest = holdings.digest.wrapping_add(sum);
            self.held += keys.len() as u64;
        }
        if self.held > self.limits.held {
            return Err(SnapshotError::Bound("blocks"));
        }
        Ok(())
    }
}

fn open(data: &[u8]) -> Result<Reader<'_>, SnapshotError> {
    let (head, body) = data.split_at_checked(HEAD).ok_or(SnapshotError::Length)?;
    if head[..8] != MAGIC {
        return Err(SnapshotError::Magic);
    }
    let mut head = Reader::new(&head[8..]);
    let mut number = || head.u32().map_err(|Short| SnapshotError::Length);
    let (version, zero) = (number()?, number()?);
    if version != VERSION {
        return Err(SnapshotError::Version(version));
    }
    let mut number = || head.u64().map_err(|Short| SnapshotError::Length);
    let (length, sum) = (number()?, number()?);
    if zero != 0 || length != body.len() as u64 {
        return Err(SnapshotError::Length);
    }
    if sum != checksum(body) {
        return Err(SnapshotError::Checksum);
    }
    Ok(Reader::new(body))
}
