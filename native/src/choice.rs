//! The choice of one worker among scored ones.
//!
//! A worker is a candidate only where the request has room. Where no worker has room the request is to wait, and where
//! none ever can have, it is refused. `Order::Turn`, a baseline for comparison, ignores room.
//!
//! Costs within TIE of the cheapest are a tie. Among tied workers the longer prefix wins, then the fewer requests, then
//! the least recently used one, so that cold prompts spread. Nothing here reads a clock or a random number.

use crate::score::{Score, View};
use std::cmp::{Ordering, Reverse};

/// Costs within this share of the cheapest are a tie.
const TIE: f64 = 0.05;
/// Candidates kept with a decision: all of a large fleet would cost more than the decision.
const LEADING: usize = 8;

/// What workers are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The cost of the prompt there.
    Cost,
    /// Waiting work alone, as if no cache were known; where nothing waits, the number of requests.
    Load,
    /// When they were used last.
    Turn,
}

impl Order {
    /// The order where it is not known what is cached.
    #[must_use]
    pub fn blind(self) -> Self {
        if self == Self::Cost { Self::Load } else { self }
    }
}

/// Why the first candidate was chosen, or none can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    LongestPrefix,
    LoadOverPrefix,
    Cold,
    Load,
    Turn,
    NoRoom,
    TooLarge,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub first: Score,
    pub second: Option<Score>,
    pub reason: Reason,
    /// The most tokens of the prompt that any candidate is expected to hold.
    pub longest: u64,
    /// How much longer the first one's queue is than the shortest, where it was chosen for holding these.
    pub excess: f64,
}

/// Scores of all workers that may be chosen; views and names are indexed by their `candidate`.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    pub scores: &'a [Score],
    pub views: &'a [View],
    pub names: &'a [String],
}

impl Scored<'_> {
    /// The best and the second best candidate. None without candidates.
    #[must_use]
    pub fn choose(&self, order: Order) -> Option<Choice> {
        let first = self.best(order, None)?;
        let longest = self.scores.iter().map(|score| score.expected_tokens).max().unwrap_or(0);
        let held = order == Order::Cost && longest > 0 && first.expected_tokens == longest;
        Some(Choice {
            first,
            second: self.best(order, Some(first.candidate)),
            reason: self.reason(order, &first, longest),
            longest,
            excess: if held { self.excess(&first) } else { 0.0 },
        })
    }

    /// The scores to keep with a decision: of the chosen and the second best candidate, then of those that hold most of
    /// the prompt, less busy ones first.
    #[must_use]
    pub fn leading(&self, choice: &Choice) -> Vec<Score> {
        let mut leading: Vec<Score> = std::iter::once(choice.first).chain(choice.second).collect();
        for score in self.holding_most() {
            if leading.len() < LEADING && leading.iter().all(|other| other.candidate != score.candidate) {
                leading.push(*score);
            }
        }
        leading
    }

    /// The scores of the LEADING candidates that hold most, the best first.
    fn holding_most(&self) -> Vec<&Score> {
        let rank = |score: &Score| (Reverse(score.matched_blocks), self.requests(score));
        let mut most: Vec<&Score> = Vec::with_capacity(LEADING + 1);
        for score in self.scores {
            if most.len() == LEADING && rank(score) >= rank(most[LEADING - 1]) {
                continue;
            }
            most.insert(most.partition_point(|other| rank(other) <= rank(score)), score);
            most.truncate(LEADING);
        }
        most
    }

    fn best(&self, order: Order, besides: Option<usize>) -> Option<Score> {
        let pool = self.scores.iter().filter(|score| Some(score.candidate) != besides);
        if order == Order::Turn {
            return pool.min_by(|a, b| self.turn(a, b)).copied();
        }
        let any_fits = pool.clone().any(|score| score.fits);
        let fitting = pool.filter(|score| score.fits || !any_fits);
        self.cheapest(fitting, order == Order::Load || !any_fits)
    }

    fn cheapest<'s>(&self, pool: impl Iterator<Item = &'s Score> + Clone, blind: bool) -> Option<Score> {
        let cost = |score: &Score| if blind { score.waiting_seconds } else { score.seconds };
        let bound = pool.clone().map(cost).fold(f64::INFINITY, f64::min) * (1.0 + TIE);
        let prefix =
            |a: &Score, b: &Score| if blind { Ordering::Equal } else { b.expected_tokens.cmp(&a.expected_tokens) };
        let tied = pool.filter(|score| cost(score) <= bound);
        tied.min_by(|a, b| {
            prefix(a, b).then_with(|| self.requests(a).cmp(&self.requests(b))).then_with(|| self.turn(a, b))
        })
        .copied()
    }

    fn requests(&self, score: &Score) -> u64 {
        self.views[score.candidate].requests
    }

    fn turn(&self, a: &Score, b: &Score) -> Ordering {
        let used = |score: &Score| self.views[score.candidate].last_used;
        used(a).cmp(&used(b)).then_with(|| self.names[a.candidate].cmp(&self.names[b.candidate]))
    }

    fn reason(&self, order: Order, first: &Score, longest: u64) -> Reason {
        match order {
            Order::Turn => Reason::Turn,
            _ if !first.fits && self.scores.iter().any(|score| score.possible) => Reason::NoRoom,
            _ if !first.fits => Reason::TooLarge,
            Order::Load => Reason::Load,
            Order::Cost if longest == 0 => Reason::Cold,
            Order::Cost if first.expected_tokens == longest => Reason::LongestPrefix,
            Order::Cost => Reason::LoadOverPrefix,
        }
    }

    fn excess(&self, first: &Score) -> f64 {
        let others = self.scores.iter().filter(|score| score.fits && score.candidate != first.candidate);
        let shortest = others.map(|score| score.waiting_seconds).fold(f64::INFINITY, f64::min);
        (first.waiting_seconds - shortest).max(0.0)
    }
}
