//! The record of a stream, by which another worker can make it again, and how much is kept of all streams.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// How an event begins that is a part of a record (`cachefleet_core.engine.answer_replay`).
const RECORD: &[u8] = b": cachefleet.replay ";

/// Counts the bytes that are kept of all streams that others may have to go on with, against a bound.
#[derive(Debug)]
pub struct KeptBytes {
    limit: usize,
    held: AtomicUsize,
}

impl KeptBytes {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, held: AtomicUsize::new(0) }
    }

    /// Counts so many bytes more, unless there is no room for them.
    pub fn take(&self, bytes: usize) -> bool {
        let more = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.held.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Counts so many bytes less.
    pub fn give_back(&self, bytes: usize) {
        let less = |held: usize| Some(held.saturating_sub(bytes));
        let _ = self.held.fetch_update(Relaxed, Relaxed, less);
    }

    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

/// What one record may take; gives it back when it goes.
pub struct RecordRoom {
    kept: Arc<KeptBytes>,
    longest: usize,
    taken: usize,
}

impl RecordRoom {
    #[must_use]
    pub fn new(kept: Arc<KeptBytes>, longest: usize) -> Self {
        Self { kept, longest, taken: 0 }
    }

    /// Has the record take so many bytes in all; why it may not.
    fn hold(&mut self, bytes: usize) -> Result<(), Unkept> {
        if bytes > self.longest {
            return Err(Unkept::TooLong);
        }
        if bytes <= self.taken {
            self.kept.give_back(self.taken - bytes);
        } else if !self.kept.take(bytes - self.taken) {
            return Err(Unkept::NoRoom);
        }
        self.taken = bytes;
        Ok(())
    }

    fn let_go(&mut self) {
        self.kept.give_back(std::mem::take(&mut self.taken));
    }
}

impl Drop for RecordRoom {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// Why a record is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unkept {
    TooLong,
    NoRoom,
}

impl Unkept {
    /// Its code (`gateway.request.replay_eligibility.Unresumed`).
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::NoRoom => "no_room",
        }
    }
}

/// What of a recorded stream has been passed on.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Passed {
    pub events: u64,
    /// Of all of them, whatever their order.
    pub digest: u64,
}

impl Passed {
    /// Adds an event.
    pub fn add(&mut self, event: &[u8]) {
        let mut hasher = DefaultHasher::new();
        hasher.write(event);
        self.events += 1;
        self.digest = self.digest.wrapping_add(hasher.finish());
    }
}

/// The record of a stream, and what has been passed on of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// The parts of the record, one a line; none where it is not kept.
    pub record: Vec<u8>,
    pub passed: Passed,
    pub unkept: Option<Unkept>,
}

/// Where a trail was.
#[derive(Clone, Copy)]
pub struct Mark {
    record: usize,
    passed: Passed,
}

/// Whether an event is a part of a record.
#[must_use]
pub fn is_part(event: &[u8]) -> bool {
    event.starts_with(RECORD)
}

impl Trail {
    /// Adds an event.
    pub fn note(&mut self, event: &[u8]) {
        match event.strip_prefix(RECORD) {
            Some(part) if self.unkept.is_none() => {
                self.record.extend_from_slice(part.trim_ascii());
                self.record.push(b'\n');
            }
            Some(_) => (),
            None => self.passed.add(event),
        }
    }

    /// Where it is now.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark { record: self.record.len(), passed: self.passed }
    }

    /// Goes back to where it was.
    pub fn go_back(&mut self, to: Mark) {
        self.record.truncate(to.record);
        self.passed = to.passed;
    }

    /// Keeps no record where there is no room for it.
    pub fn keep_within(&mut self, room: &mut RecordRoom) {
        if self.unkept.is_none() {
            self.unkept = room.hold(self.record.len()).err();
        }
        if self.unkept.is_some() {
            self.record = Vec::new();
            room.let_go();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(ids: &str) -> Vec<u8> {
        [RECORD, ids.as_bytes(), b"\n\n"].concat()
    }

    #[test]
    fn bytes_are_taken_up_to_the_bound_and_given_back() {
        let kept = KeptBytes::new(10);
        assert!(kept.take(10) && !kept.take(1) && !kept.take(usize::MAX));
        kept.give_back(4);
        assert!(kept.take(3) && kept.held() == 9);
        kept.give_back(usize::MAX);
        assert_eq!(kept.held(), 0);
    }

    #[test]
    fn records_share_a_bound_and_each_has_its_own() {
        let kept = Arc::new(KeptBytes::new(12));
        let room = || RecordRoom::new(Arc::clone(&kept), 9);
        let (mut one, mut other, mut first, mut second) = (Trail::default(), Trail::default(), room(), room());
        for trail in [&mut one, &mut other] {
            trail.note(&part("[1,2]"));
            trail.note(b"data: x\n\n");
        }
        one.keep_within(&mut first);
        other.keep_within(&mut second);
        assert_eq!((one.record.as_slice(), kept.held()), (b"[1,2]\n".as_slice(), 12));
        let before = one.mark();
        one.note(&part("[3]"));
        one.keep_within(&mut first);
        assert_eq!((one.unkept, one.record.as_slice(), kept.held()), (Some(Unkept::TooLong), b"".as_slice(), 6));
        one.go_back(before);
        one.note(&part("[4]"));
        one.keep_within(&mut first);
        assert_eq!((one.record.len(), one.passed.events, kept.held()), (0, 1, 6));
        assert!(kept.take(5));
        other.note(&part("[]"));
        other.keep_within(&mut second);
        assert_eq!((other.unkept, kept.held()), (Some(Unkept::NoRoom), 5));
        let codes = [one.unkept, other.unkept].map(|unkept| unkept.map_or("", Unkept::code));
        assert_eq!(codes, ["too_long", "no_room"]);
    }

    #[test]
    fn what_is_taken_back_is_given_back() {
        let kept = Arc::new(KeptBytes::new(100));
        let (mut trail, mut room) = (Trail::default(), RecordRoom::new(Arc::clone(&kept), 50));
        let before = trail.mark();
        trail.note(&part("[1]"));
        trail.keep_within(&mut room);
        assert_eq!(kept.held(), 4);
        trail.go_back(before);
        trail.keep_within(&mut room);
        assert_eq!((kept.held(), trail), (0, Trail::default()));
        drop(room);
        assert_eq!(kept.held(), 0);
    }
}
