//! The workers of all fleets as decisions see them, updated in place, and the choice among those of one fleet.
//!
//! Pure and synchronous: everything takes `now`, nothing does I/O, and nothing here knows Python. `account` makes
//! records, `reservations` are blocks that requests will fill, `flights` requests in flight to one worker, `sharing`
//! what replicas tell each other of these, `recent_keys` the texts sent to it last, `workers` one worker's row, and
//! `table` the workers of one fleet, among which is chosen.

pub mod account;
pub mod choose;
pub mod flights;
pub mod recent_keys;
pub mod reservations;
pub mod sharing;
pub mod table;
pub mod workers;

use crate::score::View;
use sharing::{Load, WHOLE_SECONDS};
use std::hash::{BuildHasher, RandomState};
use workers::Row;

/// A row as of the last time that anything of it changed.
#[derive(Debug)]
struct Seen {
    view: View,
    preference: u8,
    /// Another one whenever the row was looked at again.
    stamp: u64,
    /// When time alone may change it; in the past where an event has.
    until: f64,
}

/// The rows of all workers, by slot.
#[derive(Debug, Default)]
pub struct Plane {
    rows: Vec<Row>,
    seen: Vec<Seen>,
    free: Vec<u32>,
    /// Raised whenever a measurement or a preference changes.
    changes: u64,
    stamps: u64,
    decisions: u64,
    /// Rows of whose requests others have not been told all.
    untold: Vec<u32>,
    /// Whether any row had requests to tell of when all were looked at last, and when that was.
    telling: bool,
    looked_at: f64,
    names: RandomState,
}

impl Plane {
    /// A row for another worker; its slot, to be given back with `leave`.
    ///
    /// # Panics
    /// There are 2^32 workers.
    pub fn join(&mut self) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.rows.push(Row::default());
            self.seen.push(Seen { view: View::UNKNOWN, preference: 0, stamp: 0, until: f64::NEG_INFINITY });
            u32::try_from(self.rows.len() - 1).expect("fewer workers")
        });
        *self.row(slot) = Row::default();
        slot
    }

    /// The worker of a slot is gone, and nobody refers to it.
    pub fn leave(&mut self, slot: u32) {
        self.rows[slot as usize] = Row::default();
        self.free.push(slot);
    }

    /// A row that is about to change.
    pub fn row(&mut self, slot: u32) -> &mut Row {
        self.seen[slot as usize].until = f64::NEG_INFINITY;
        let row = &mut self.rows[slot as usize];
        if row.untold.is_some() && !row.noted {
            row.noted = true;
            self.untold.push(slot);
        }
        row
    }

    /// Other replicas are told of the requests on a worker from now on, or no more.
    pub fn share(&mut self, slot: u32, shared: bool, now: f64) {
        self.row(slot).share(shared, now);
        self.row(slot); // notes what there is to tell
    }

    /// What other replicas are to be told of the requests on each worker, and whether there may soon be more.
    pub fn tell(&mut self, now: f64) -> (Vec<(u32, Load)>, bool) {
        if now - self.looked_at >= WHOLE_SECONDS {
            self.look_at_all(now);
        }
        let untold = std::mem::take(&mut self.untold);
        let loads = untold.into_iter().filter_map(|slot| Some((slot, self.rows[slot as usize].tell(now)?)));
        let loads: Vec<_> = loads.collect();
        self.telling |= !loads.is_empty();
        (loads, self.telling)
    }

    fn look_at_all(&mut self, now: f64) {
        self.looked_at = now;
        self.telling = false;
        for (slot, row) in (0..).zip(&mut self.rows) {
            let Some(untold) = row.untold.as_mut().filter(|_| !row.flights.is_empty()) else {
                continue;
            };
            self.telling = true;
            if untold.due(now) {
                untold.all();
                if !std::mem::replace(&mut row.noted, true) {
                    self.untold.push(slot);
                }
            }
        }
    }

    /// Changes of a worker's blocks were applied, and none of its load; whether it has no requests in flight.
    pub fn changed(&mut self, slot: u32) -> bool {
        let row = &mut self.rows[slot as usize];
        row.changed();
        row.flights.is_empty()
    }

    /// A row that stays as it is.
    #[must_use]
    pub fn look(&self, slot: u32) -> &Row {
        &self.rows[slot as usize]
    }

    /// Its load up to now.
    pub fn view(&mut self, slot: u32, now: f64) -> &View {
        self.follow(slot, now);
        &self.seen[slot as usize].view
    }

    /// Holds a row's load to be this, whatever its events and the time tell.
    pub fn hold(&mut self, slot: u32, view: View) {
        self.changes += 1;
        self.stamps += 1;
        self.seen[slot as usize] = Seen { view, preference: u8::MAX, stamp: self.stamps, until: f64::INFINITY };
    }

    /// The number of another decision that sends a request.
    pub fn decide(&mut self) -> u64 {
        self.decisions += 1;
        self.decisions
    }

    /// An adapter's name as rows have it.
    #[must_use]
    pub fn adapter(&self, name: &str) -> u64 {
        self.names.hash_one(name)
    }

    /// Has what is seen of a row be up to date.
    #[inline]
    fn follow(&mut self, slot: u32, now: f64) -> &Seen {
        if now >= self.seen[slot as usize].until {
            self.look_again(slot, now);
        }
        &self.seen[slot as usize]
    }

    fn look_again(&mut self, slot: u32, now: f64) {
        let (row, seen) = (&mut self.rows[slot as usize], &mut self.seen[slot as usize]);
        row.peers.expire(now);
        self.stamps += 1;
        let (preference, until) = (row.preference(now), row.due(now));
        let new = Seen { view: row.view(now), preference, stamp: self.stamps, until };
        let same = seen.preference == new.preference && seen.view.measured() == new.view.measured();
        self.changes += u64::from(!same);
        *seen = new;
    }
}
