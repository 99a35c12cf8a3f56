//! The choice of one worker among scored ones.
//!
//! A worker is a candidate only where the request has room. Where no worker has room the request is to wait, and where
//! none ever can have, it is refused. `Order::Turn`, a baseline for comparison, ignores room.
//!
//! Costs within TIE of the cheapest are a tie. Among tied workers the longer prefix wins, then the fewer requests, then
//! the least recently used one, so that cold prompts spread. Nothing here reads a clock or a random number.

use crate::score::{Score, View};
use std::cmp::Reverse;

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

/// Of a score what the choice compares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub member: u32,
    /// The member's place in the order of names.
    pub rank: u32,
    pub seconds: f64,
    pub waiting_seconds: f64,
    pub expected_tokens: u64,
    pub matched_blocks: u32,
    pub fits: bool,
    pub possible: bool,
    pub requests: u64,
    pub last_used: u64,
}

impl Cost {
    #[must_use]
    pub fn of(score: &Score, view: &View, member: u32, rank: u32) -> Self {
        Self {
            member,
            rank,
            seconds: score.seconds,
            waiting_seconds: score.waiting_seconds,
            expected_tokens: score.expected_tokens,
            matched_blocks: score.matched_blocks,
            fits: score.fits,
            possible: score.possible,
            requests: view.requests,
            last_used: view.last_used,
        }
    }

    fn turn(&self) -> (u64, u32) {
        (self.last_used, self.rank)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    pub first: Cost,
    pub second: Option<Cost>,
    pub reason: Reason,
    /// The most tokens of the prompt that any candidate is expected to hold.
    pub longest: u64,
    /// How much longer the first one's queue is than the shortest, where it was chosen for holding these.
    pub excess: f64,
}

/// The costs of all candidates.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    pub costs: &'a [Cost],
}

impl Scored<'_> {
    /// The best and the second best candidate. None without candidates.
    #[must_use]
    pub fn choose(&self, order: Order) -> Option<Choice> {
        let first = self.best(order, |_| true)?;
        let longest = self.costs.iter().map(|cost| cost.expected_tokens).max().unwrap_or(0);
        let held = order == Order::Cost && longest > 0 && first.expected_tokens == longest;
        Some(Choice {
            first,
            second: self.best(order, |cost| cost.member != first.member),
            reason: self.reason(order, &first, longest),
            longest,
            excess: if held { self.excess(&first) } else { 0.0 },
        })
    }

    /// The choices after one that has room, in order, each without those before: of its own `pool`, and of each `group` one.
    /// At most `most`.
    #[must_use]
    pub fn next(
        &self,
        order: Order,
        choice: &Choice,
        most: usize,
        [pool, group]: [&dyn Fn(&Cost) -> usize; 2],
    ) -> Vec<Choice> {
        let own = pool(&choice.first);
        let (mut before, mut next) = (vec![group(&choice.first)], Vec::new());
        while next.len() < most
            && let Some(first) = self.best(order, |cost| pool(cost) == own && !before.contains(&group(cost)))
            && (first.fits || order == Order::Turn)
        {
            before.push(group(&first));
            let reason = self.reason(order, &first, choice.longest);
            next.push(Choice { first, second: None, reason, longest: choice.longest, excess: 0.0 });
        }
        next
    }

    /// The members whose scores are kept with a decision: the chosen and the second best one, then those that hold most
    /// of the prompt, less busy ones first.
    #[must_use]
    pub fn leading(&self, choice: &Choice) -> Vec<u32> {
        let mut leading = Vec::with_capacity(LEADING);
        let best = std::iter::once(choice.first).chain(choice.second).map(|cost| cost.member);
        for member in best.chain(self.holding_most()) {
            if leading.len() < LEADING && !leading.contains(&member) {
                leading.push(member);
            }
        }
        leading
    }

    /// The LEADING candidates that hold most, the best first.
    fn holding_most(&self) -> impl Iterator<Item = u32> + use<> {
        let mut most: Vec<((Reverse<u32>, u64), u32)> = Vec::with_capacity(LEADING + 1);
        for cost in self.costs {
            let rank = (Reverse(cost.matched_blocks), cost.requests);
            if most.len() == LEADING && rank >= most[LEADING - 1].0 {
                continue;
            }
            most.insert(most.partition_point(|other| other.0 <= rank), (rank, cost.member));
            most.truncate(LEADING);
        }
        most.into_iter().map(|(_, member)| member)
    }

    fn best(&self, order: Order, may: impl Fn(&Cost) -> bool + Copy) -> Option<Cost> {
        let pool = self.costs.iter().filter(|cost| may(cost));
        if order == Order::Turn {
            return pool.min_by_key(|cost| cost.turn()).copied();
        }
        let any_fits = pool.clone().any(|cost| cost.fits);
        let blind = order == Order::Load || !any_fits;
        cheapest(pool.filter(|cost| cost.fits || !any_fits), blind)
    }

    fn reason(&self, order: Order, first: &Cost, longest: u64) -> Reason {
        match order {
            Order::Turn => Reason::Turn,
            _ if !first.fits && self.costs.iter().any(|cost| cost.possible) => Reason::NoRoom,
            _ if !first.fits => Reason::TooLarge,
            Order::Load => Reason::Load,
            Order::Cost if longest == 0 => Reason::Cold,
            Order::Cost if first.expected_tokens == longest => Reason::LongestPrefix,
            Order::Cost => Reason::LoadOverPrefix,
        }
    }

    fn excess(&self, first: &Cost) -> f64 {
        let others = self.costs.iter().filter(|cost| cost.fits && cost.member != first.member);
        let shortest = others.map(|cost| cost.waiting_seconds).fold(f64::INFINITY, f64::min);
        (first.waiting_seconds - shortest).max(0.0)
    }
}

fn cheapest<'c>(pool: impl Iterator<Item = &'c Cost> + Clone, blind: bool) -> Option<Cost> {
    let seconds = |cost: &Cost| if blind { cost.waiting_seconds } else { cost.seconds };
    let bound = pool.clone().map(seconds).fold(f64::INFINITY, f64::min) * (1.0 + TIE);
    let prefix = |cost: &Cost| if blind { 0 } else { cost.expected_tokens };
    let tied = pool.filter(|cost| seconds(cost) <= bound);
    tied.min_by_key(|cost| (Reverse(prefix(cost)), cost.requests, cost.turn())).copied()
}
