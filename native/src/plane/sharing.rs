//! Requests in flight to one worker as replicas tell each other of them, and those that others have told of.
//!
//! A `Load` names requests of one replica that have changed, or all that it has (`whole`), so that what was lost heals
//! with the next whole one. The receiver keeps them as it keeps its own (`Flights`), for each replica apart, until it
//! has heard nothing of that replica for `SILENT_SECONDS`. Of a prompt's keys only those are told whose blocks the
//! request computes, once. `tests/reference/sharing.py` says the same in Python.

use super::flights::{EXPECTED_SECONDS, Flight, Flights, Sent};
use std::collections::HashSet;
use std::sync::Arc;

/// How long a replica's requests count after it was heard last.
pub const SILENT_SECONDS: f64 = 3.0;
/// How often a replica with requests in flight tells all of them at least.
pub const WHOLE_SECONDS: f64 = 1.0;
/// Keys of one prompt that are told, and of all prompts of one Load.
const MAX_KEYS: usize = 4096;
const MAX_ALL_KEYS: usize = 65_536;
/// Requests of one replica on one worker that are told and kept.
const MAX_FLIGHTS: usize = 4096;
/// Replicas whose requests are kept for one worker.
const MAX_PEERS: usize = 64;

/// One request in flight.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "python", derive(pyo3::FromPyObject))]
pub struct Told {
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub number: u64,
    /// Seconds since it was sent.
    pub age: f64,
    /// It has no first token yet.
    pub computing: bool,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub tokens: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub sequences: u64,
    /// Blocks that it needs beyond those that were there.
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub blocks: u64,
    /// Free blocks that it takes.
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub taken: u64,
    /// Blocks of its prompt before the first of `keys`.
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub skip: u64,
    /// Of `keys`, the first ones whose blocks others may share.
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub common: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bytes_of_keys))]
    pub keys: Vec<u64>,
}

/// What a replica tells of its requests on one worker.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "python", derive(pyo3::FromPyObject))]
pub struct Load {
    /// Requests that are not named are over.
    pub whole: bool,
    pub flights: Vec<Told>,
    pub ended: Vec<u64>,
    /// Those that ended without a first token: their blocks will not come.
    pub failed: Vec<u64>,
}

/// What other replicas have not been told of this one's requests.
#[derive(Debug, Default)]
pub struct Untold {
    whole: bool,
    /// Requests that began, and the blocks of their prompts that need not be told.
    begun: Vec<(u64, usize)>,
    changed: Vec<u64>,
    failed: Vec<u64>,
    /// When all were told last.
    whole_at: f64,
}

impl Untold {
    /// Nothing was told yet; the keys of those that may be expected are told, too.
    #[must_use]
    pub fn of(flights: &Flights, now: f64) -> Self {
        let all = flights.numbers().filter_map(|number| Some((number, flights.get(number)?)));
        let expected = all.filter(|(_, flight)| !flight.prefilled || now - flight.sent_at < EXPECTED_SECONDS);
        let begun = expected.map(|(number, flight)| (number, blocks(flight.sent.held))).collect();
        Self { whole: true, begun, whole_at: now, ..Self::default() }
    }

    pub fn begun(&mut self, number: u64, there: usize) {
        self.begun.push((number, there));
        self.changed.push(number);
    }

    pub fn changed(&mut self, number: u64) {
        self.changed.push(number);
    }

    pub fn failed(&mut self, number: u64) {
        self.failed.push(number);
    }

    /// Tells all requests next.
    pub fn all(&mut self) {
        self.whole = true;
    }

    /// Whether all were told so long ago that they are to be told again.
    #[must_use]
    pub fn due(&self, now: f64) -> bool {
        now - self.whole_at >= WHOLE_SECONDS
    }

    /// What is to be told; None where that is nothing.
    pub fn tell(&mut self, flights: &Flights, now: f64) -> Option<Load> {
        let Self { whole, begun, mut changed, failed, whole_at } = std::mem::take(self);
        self.whole_at = if whole { now } else { whole_at };
        if (!whole || flights.is_empty()) && changed.is_empty() && failed.is_empty() {
            return None;
        }
        changed.sort_unstable();
        changed.dedup();
        let mut load = Load { whole, failed, ..Load::default() };
        load.ended = changed.iter().copied().filter(|number| flights.get(*number).is_none()).collect();
        let named: Vec<u64> = if whole { flights.numbers().collect() } else { changed };
        let mut room = MAX_ALL_KEYS;
        for number in &named[named.len().saturating_sub(MAX_FLIGHTS)..] {
            let there = begun.binary_search_by_key(number, |(number, _)| *number).ok().map(|place| begun[place].1);
            if let Some(flight) = flights.get(*number) {
                let told = Told::of(*number, flight, there, room, now);
                room -= told.keys.len();
                load.flights.push(told);
            }
        }
        Some(load)
    }
}

impl Told {
    /// `there`: of its prompt's blocks, those before the keys that are told; None where none are to be told.
    fn of(number: u64, flight: &Flight, there: Option<usize>, room: usize, now: f64) -> Self {
        let sent = &flight.sent;
        let skip = there.unwrap_or(sent.keys.len()).min(sent.keys.len());
        let rest = &sent.keys[skip..];
        let told = rest.len().min(MAX_KEYS).min(room);
        Self {
            number,
            age: (now - flight.sent_at).max(0.0),
            computing: !flight.prefilled,
            tokens: sent.tokens,
            sequences: sent.sequences,
            blocks: sent.blocks.saturating_sub(sent.held),
            taken: sent.taken,
            skip: skip as u64,
            common: if told == rest.len() { sent.common.saturating_sub(skip) as u64 } else { 0 },
            keys: rest[..told].to_vec(),
        }
    }

    fn sent(&self) -> Sent {
        Sent {
            skip: blocks(self.skip),
            keys: Arc::from(&*self.keys),
            common: blocks(self.common),
            tokens: self.tokens,
            prompt_tokens: 0,
            sequences: self.sequences,
            blocks: self.blocks,
            taken: self.taken,
            held: 0,
        }
    }
}

/// Another replica's requests in flight to one worker.
#[derive(Debug)]
pub struct Peer {
    origin: String,
    heard_at: f64,
    pub flights: Flights,
}

/// What a Load has changed.
#[derive(Debug, Default)]
pub struct Heard {
    /// Tokens to be computed, and sequences, of requests that a report may count as those of unknown senders.
    pub tokens: u64,
    pub waiting: u64,
    pub sequences: u64,
    /// How many requests are new.
    pub begun: usize,
    /// Whether any is over.
    pub ended: bool,
}

impl Peer {
    #[must_use]
    pub fn new(origin: &str, now: f64) -> Self {
        Self { origin: origin.to_owned(), heard_at: now, flights: Flights::default() }
    }

    /// When its requests count no more unless it is heard.
    #[must_use]
    pub fn due(&self) -> f64 {
        self.heard_at + SILENT_SECONDS
    }

    /// Takes a Load over; `reported_at` is when the worker's last report came.
    fn hear(&mut self, load: &Load, reported_at: f64, now: f64) -> Heard {
        self.heard_at = now;
        let mut heard = Heard::default();
        for told in &load.flights {
            self.follow(told, reported_at, now, &mut heard);
        }
        heard.ended = self.close(&load.failed, true) | self.close(&load.ended, false);
        if load.whole {
            let named: HashSet<u64> = load.flights.iter().map(|told| told.number).collect();
            let over: Vec<u64> = self.flights.numbers().filter(|number| !named.contains(number)).collect();
            heard.ended |= self.close(&over, false);
        }
        heard
    }

    /// Requests are over; whether any was not.
    fn close(&mut self, numbers: &[u64], failed: bool) -> bool {
        numbers.iter().fold(false, |any, number| self.flights.close(*number, failed) | any)
    }

    fn follow(&mut self, told: &Told, reported_at: f64, now: f64, heard: &mut Heard) {
        if self.flights.get(told.number).is_none() {
            if self.flights.len() >= MAX_FLIGHTS {
                return;
            }
            let sent_at = now - told.age.max(0.0);
            self.flights.begin(told.number, told.sent(), sent_at);
            heard.begun += 1;
            if sent_at <= reported_at {
                heard.tokens += if told.computing { told.tokens } else { 0 };
                heard.waiting += if told.computing { told.sequences } else { 0 };
                heard.sequences += told.sequences;
            }
        }
        if !told.computing {
            self.flights.landed(told.number);
        }
    }
}

/// All other replicas that have told of requests on one worker.
#[derive(Debug, Default)]
pub struct Peers(Vec<Peer>);

impl Peers {
    pub fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.0.iter()
    }

    pub fn flights(&mut self) -> impl Iterator<Item = &mut Flights> {
        self.0.iter_mut().map(|peer| &mut peer.flights)
    }

    /// Drops those that are silent.
    pub fn expire(&mut self, now: f64) {
        self.0.retain(|peer| now - peer.heard_at < SILENT_SECONDS);
    }

    /// Takes the Load of a replica over.
    pub fn hear(&mut self, origin: &str, load: &Load, reported_at: f64, now: f64) -> Heard {
        self.expire(now);
        let place = self.0.iter().position(|peer| peer.origin == origin);
        let Some(place) = place.or_else(|| self.join(origin, now)) else {
            return Heard::default();
        };
        self.0[place].hear(load, reported_at, now)
    }

    fn join(&mut self, origin: &str, now: f64) -> Option<usize> {
        (self.0.len() < MAX_PEERS).then(|| {
            self.0.push(Peer::new(origin, now));
            self.0.len() - 1
        })
    }
}

fn blocks(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
