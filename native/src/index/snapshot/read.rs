//! Bytes into an index.

use super::super::runs::MAX_RUN;
use super::super::sets::Word;
use super::super::{Index, Limits};
use super::{HEAD, MAGIC, SnapshotError, VERSION, checksum, slots};
use crate::digest;
use crate::reader::{Reader, Short};

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
