//! Requests of one replica in flight to one worker that the worker's report does not show yet.
//!
//! A request's uncached tokens count as work until its first token, at most `UNCACHED_WORK_SECONDS`. Its prompt's blocks
//! are expected on the worker from the time it is sent: for `EXPECTED_SECONDS`, or as long as it is being prefilled. So
//! a burst of one prompt goes to one worker, and so do the turns of a conversation, without waiting for reports.
//! `tests/reference/inflight.py` says the same in Python.

use super::reservations::{Chain, Reservation, Reservations, shared_blocks};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub const EXPECTED_SECONDS: f64 = 2.0;
pub const UNCACHED_WORK_SECONDS: f64 = 30.0;
/// Prompts kept for each worker.
pub const MAX_EXPECTED: usize = 256;
/// Prompt length assumed until some were seen.
const TYPICAL_TOKENS: f64 = 512.0;
const SMOOTHING: f64 = 0.1;

/// A request that is about to be sent to a worker.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Blocks of its prompt before the first of `keys`.
    pub skip: usize,
    pub keys: Arc<[u64]>,
    /// Of these, the first ones whose blocks others may share.
    pub common: usize,
    /// To be computed.
    pub tokens: u64,
    /// Of its prompt; 0 where that is not known.
    pub prompt_tokens: u64,
    /// Answers that it asks for: an engine counts each as a request.
    pub sequences: u64,
    /// Blocks that it needs.
    pub blocks: u64,
    /// Of these, those it takes of the free ones.
    pub taken: u64,
    /// Blocks of its prompt that are there according to the index.
    pub held: u64,
}

#[derive(Debug)]
pub struct Flight {
    pub sent: Sent,
    pub sent_at: f64,
    pub prefilled: bool,
    reservation: Reservation,
}

/// A prompt whose blocks may be expected.
#[derive(Debug)]
struct Recent {
    number: u64,
    sent_at: f64,
    /// Neither prefilled nor over.
    working: bool,
    /// How many Deltas had come when it was over; None where it is not.
    over: Option<u64>,
    skip: usize,
    first: u64,
    keys: Arc<[u64]>,
    common: usize,
}

/// All requests in flight to one worker.
#[derive(Debug)]
pub struct Flights {
    /// By number, and so in the order in which they were sent.
    open: BTreeMap<u64, Flight>,
    /// Those of them without a first token.
    computing: usize,
    pub sequences: u64,
    recent: VecDeque<Recent>,
    pub typical_tokens: f64,
    reservations: Reservations,
    /// Blocks needed by requests that ended since the worker's last report.
    pub ended_blocks: u64,
    /// Changes of its blocks that the worker has told.
    pub deltas: u64,
}

impl Default for Flights {
    fn default() -> Self {
        Self {
            open: BTreeMap::new(),
            computing: 0,
            sequences: 0,
            recent: VecDeque::new(),
            typical_tokens: TYPICAL_TOKENS,
            reservations: Reservations::default(),
            ended_blocks: 0,
            deltas: 0,
        }
    }
}

impl Flights {
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Distinct blocks that all of them will have filled in the end.
    #[must_use]
    pub fn reserved(&self) -> i64 {
        self.reservations.blocks()
    }

    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Flight> {
        self.open.get(&number)
    }

    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        self.open.keys().copied()
    }

    /// A request is sent; its number is greater than those before it.
    #[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2**52")]
    pub fn begin(&mut self, number: u64, sent: Sent, now: f64) {
        self.computing += 1;
        self.sequences += sent.sequences;
        let common = Chain::new(&sent.keys, sent.common);
        let reservation = self.reservations.take(&common, sent.blocks, sent.held);
        if let Some(first) = sent.keys.first().copied() {
            if self.recent.len() == MAX_EXPECTED {
                self.recent.pop_front();
            }
            let (keys, common, skip) = (Arc::clone(&sent.keys), sent.common, sent.skip);
            self.recent.push_back(Recent {
                number,
                sent_at: now,
                working: true,
                over: None,
                skip,
                first,
                keys,
                common,
            });
        }
        if sent.prompt_tokens > 0 {
            self.typical_tokens += SMOOTHING * (sent.prompt_tokens as f64 - self.typical_tokens);
        }
        self.open.insert(number, Flight { sent, sent_at: now, prefilled: false, reservation });
    }

    /// A request has its first token: its blocks are there, and others may share them. False where it had, or is over.
    pub fn landed(&mut self, number: u64) -> bool {
        let Some(flight) = self.open.get_mut(&number).filter(|flight| !flight.prefilled) else {
            return false;
        };
        flight.prefilled = true;
        self.computing -= 1;
        let common = Chain::new(&flight.sent.keys, flight.sent.common);
        self.reservations.computed(&mut flight.reservation, &common);
        self.settle(number);
        true
    }

    /// A request is over; one that `failed` before its first token leaves nothing to expect. False where it was over.
    pub fn close(&mut self, number: u64, failed: bool) -> bool {
        let Some(flight) = self.open.remove(&number) else {
            return false;
        };
        self.sequences -= flight.sent.sequences;
        self.computing -= usize::from(!flight.prefilled);
        self.reservations.drop(&flight.reservation);
        self.ended_blocks += flight.sent.blocks;
        match self.settle(number) {
            Some(place) if failed && !flight.prefilled => drop(self.recent.remove(place)),
            Some(place) => self.recent[place].over = Some(self.deltas),
            None => (),
        }
        true
    }

    /// A request computes no more; where its prompt is among the recent ones.
    fn settle(&mut self, number: u64) -> Option<usize> {
        let place = self.recent.binary_search_by_key(&number, |recent| recent.number).ok()?;
        self.recent[place].working = false;
        Some(place)
    }

    /// The worker's cache begins anew.
    pub fn forget_prompts(&mut self) {
        self.recent.clear();
    }

    fn working(&self, now: f64) -> impl Iterator<Item = &Flight> {
        let count = self.computing;
        self.open
            .values()
            .rev()
            .filter(|flight| !flight.prefilled)
            .take(count)
            .take_while(move |flight| now - flight.sent_at < UNCACHED_WORK_SECONDS)
    }

    /// Prompt tokens sent and not computed yet.
    #[must_use]
    pub fn tokens(&self, now: f64) -> u64 {
        self.working(now).map(|flight| flight.sent.tokens).sum()
    }

    /// Number of sequences whose prompt still has to be computed.
    #[must_use]
    pub fn waiting(&self, now: f64) -> u64 {
        self.working(now).map(|flight| flight.sent.sequences).sum()
    }

    /// When one of them stops counting as work, if it gets no first token.
    #[must_use]
    pub fn due(&self, now: f64) -> Option<f64> {
        self.working(now).last().map(|flight| flight.sent_at + UNCACHED_WORK_SECONDS)
    }

    /// Free blocks that requests sent after `moment` take.
    #[must_use]
    pub fn blocks_since(&self, moment: f64) -> u64 {
        self.open.values().rev().take_while(|flight| flight.sent_at > moment).map(|flight| flight.sent.taken).sum()
    }

    /// The longest prefix, in blocks, that `keys` share with a prompt whose blocks are expected there.
    ///
    /// `keys` are those from block `skip` on. `whole`: only with prompts that they go on from, as windows are kept at a
    /// prompt's end alone.
    pub fn expected(&mut self, skip: usize, keys: &[u64], now: f64, whole: bool) -> u32 {
        while self.recent.front().is_some_and(|recent| !recent.expected(now)) {
            self.recent.pop_front();
        }
        self.longest(skip, keys, whole, |recent| recent.expected(now))
    }

    /// The same of prompts whose blocks will be there before a request that is sent now, whatever is evicted: those of
    /// requests that are not over, as an engine keeps what is in use and computes in the order of arrival, and of those
    /// that are over while no Delta has come since, which would tell of their blocks or of their eviction.
    #[must_use]
    pub fn coming(&self, skip: usize, keys: &[u64], now: f64, whole: bool) -> u32 {
        self.longest(skip, keys, whole, |recent| recent.expected(now) && recent.over.is_none_or(|at| at == self.deltas))
    }

    fn longest(&self, skip: usize, keys: &[u64], whole: bool, counts: impl Fn(&Recent) -> bool) -> u32 {
        let mut best = 0_usize;
        for recent in &self.recent {
            // A key commits to all before it: what is known of both from some block on tells of all.
            let start = skip.max(recent.skip);
            // Most begin otherwise, or share no more than what was found already, and there may be many.
            if best <= start && start == recent.skip && keys.get(start - skip) != Some(&recent.first) {
                continue;
            }
            let (Some(asked), Some(theirs)) = (keys.get(start - skip..), recent.told(whole, start)) else {
                continue;
            };
            let from = best.saturating_sub(start);
            let longer = theirs.get(from).is_some_and(|key| asked.get(from) == Some(key));
            if longer && (!whole || asked.starts_with(theirs)) && counts(recent) {
                best = start + if whole { theirs.len() } else { shared_blocks(asked, theirs, from) };
            }
        }
        u32::try_from(best).unwrap_or(u32::MAX)
    }

    #[must_use]
    pub fn expects(&self) -> bool {
        !self.recent.is_empty()
    }
}

impl Recent {
    /// Its keys from block `start` on; where it must be gone on from `whole`, those that others may share.
    fn told(&self, whole: bool, start: usize) -> Option<&[u64]> {
        let end = if whole { self.common.min(self.keys.len()) } else { self.keys.len() };
        self.keys.get(start - self.skip..end)
    }

    fn expected(&self, now: f64) -> bool {
        let age = now - self.sent_at;
        age < EXPECTED_SECONDS || (self.working && age < UNCACHED_WORK_SECONDS)
    }
}
