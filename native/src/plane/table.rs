//! The workers of one fleet that may do one duty, and the choice among them.

use super::Plane;
use super::choose::{Choice, Cost, Order, Scored};
use crate::index::Rule;
use crate::score::{Cached, Prompt, Queue, Score, View, score};
use crate::throughput::{self, Throughput};
use std::collections::{HashMap, HashSet};

/// A worker of a table.
#[derive(Clone, Debug)]
pub struct Member {
    pub slot: u32,
    pub id: String,
    /// Pool and name: the worker with all its ranks.
    pub full_name: String,
    /// Number of its pool.
    pub pool: usize,
}

/// Members are numbered in their order.
#[derive(Debug)]
pub struct Table {
    slots: Vec<u32>,
    /// None where all are plain.
    rules: Vec<Rule>,
    /// The numbers of those with a full name or an id.
    by_name: HashMap<String, Vec<u32>>,
    /// The number of the first member with the same full name.
    groups: Vec<u32>,
    /// Places in the order of their ids.
    ranks: Vec<u32>,
    pools: Vec<usize>,
    /// Learnt of those candidates, as of that change of the plane.
    throughputs: Vec<Throughput>,
    learnt: Option<(u64, Vec<u32>)>,
    /// Of each member its queue, as of that stamp of its row.
    queues: Vec<(u64, Queue)>,
    weighed: bool,
    candidates: Vec<u32>,
    costs: Vec<Cost>,
}

/// What a decision is made for.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Prompt,
    pub order: Order,
    /// An adapter that workers must not lack, and the one that is to be loaded.
    pub needed: Option<u64>,
    pub adapter: Option<u64>,
    /// Full names or ids.
    pub excluded: Vec<String>,
    /// How many of the chosen one's pool are to be named after it.
    pub more: usize,
    pub now: f64,
}

/// A decision: the best candidate, and what explains it.
#[derive(Clone, Debug)]
pub struct Chosen {
    pub choice: Choice,
    pub blind: bool,
    /// How many candidates there were.
    pub candidates: usize,
    /// Blocks of the largest.
    pub largest: u64,
    pub first: Kept,
    /// What is chosen of the same pool where those before are not to be had.
    pub next: Vec<(Choice, Kept)>,
    pub leading: Vec<Kept>,
    /// All, where they are to be kept.
    pub all: Vec<Kept>,
}

impl Chosen {
    /// Scores of the leading candidates but the best.
    pub fn others(&self) -> impl Iterator<Item = &Score> {
        self.leading.iter().filter(|kept| kept.member != self.first.member).map(|kept| &kept.score)
    }

    /// The decision for the one that is next in this place.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<Self> {
        let (choice, first) = *self.next.get(place)?;
        Some(Self { choice, first, next: Vec::new(), leading: self.leading.clone(), all: self.all.clone(), ..*self })
    }
}

/// A score with what it was computed from.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    pub member: u32,
    pub score: Score,
    pub view: View,
    pub throughput: Throughput,
    /// Tokens that are forecast to come from its cache: those predicted, and those of requests ahead of this one.
    pub forecast_tokens: u64,
}

impl Table {
    /// `rules` has one for each member, or none where all are plain.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "there are fewer than 2**32 slots")]
    pub fn new(members: &[Member], rules: Vec<Rule>) -> Self {
        let mut by_name: HashMap<String, Vec<u32>> = HashMap::new();
        let mut groups = Vec::with_capacity(members.len());
        for (number, member) in (0..).zip(members) {
            let ranks = by_name.entry(member.full_name.clone()).or_default();
            ranks.push(number);
            groups.push(ranks[0]);
        }
        by_name.extend((0..).zip(members).map(|(number, member)| (member.id.clone(), vec![number])));
        let mut order: Vec<u32> = (0..members.len() as u32).collect();
        order.sort_unstable_by_key(|number| &members[*number as usize].id);
        let mut ranks = vec![0; members.len()];
        (0..).zip(order).for_each(|(rank, number)| ranks[number as usize] = rank);
        Self {
            slots: members.iter().map(|member| member.slot).collect(),
            rules,
            by_name,
            groups,
            ranks,
            pools: members.iter().map(|member| member.pool).collect(),
            throughputs: Vec::new(),
            learnt: None,
            queues: vec![(0, Queue::default()); members.len()],
            weighed: true,
            candidates: Vec::new(),
            costs: Vec::new(),
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// One for each member; none where all are plain.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The member with an id, or the first with a full name.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<usize> {
        Some(*self.by_name.get(name)?.first()? as usize)
    }

    /// Members that serve an adapter, where one is needed, and of these those that are preferred.
    pub fn preferred(&mut self, plane: &mut Plane, needed: Option<u64>, now: f64) -> &[u32] {
        let lacking = self.lacking(plane, needed, now);
        self.prefer(plane, &lacking, now);
        &self.candidates
    }

    /// Has `candidates` be the most preferred members but those that are marked in `without`, which may be empty.
    fn prefer(&mut self, plane: &mut Plane, without: &[bool], now: f64) {
        self.candidates.clear();
        let mut most = 1;
        for (number, slot) in (0..).zip(&self.slots) {
            let preference = plane.follow(*slot, now).preference;
            if preference < most || without.get(number as usize) == Some(&true) {
                continue;
            }
            if preference > most {
                most = preference;
                self.candidates.clear();
            }
            self.candidates.push(number);
        }
    }

    /// Marks all ranks of workers any ready rank of which lacks an adapter; empty where none is needed.
    fn lacking(&self, plane: &mut Plane, needed: Option<u64>, now: f64) -> Vec<bool> {
        let Some(adapter) = needed else {
            return Vec::new();
        };
        let lacks =
            |slot: u32, plane: &mut Plane| plane.follow(slot, now).preference > 0 && plane.look(slot).lacks(adapter);
        let lacking: HashSet<u32> = self
            .slots
            .iter()
            .zip(&self.groups)
            .filter(|(slot, _)| lacks(**slot, plane))
            .map(|(_, group)| *group)
            .collect();
        self.groups.iter().map(|group| lacking.contains(group)).collect()
    }

    /// Marks the members with these ids or full names.
    fn named(&self, names: &[String]) -> Vec<bool> {
        let mut marks = vec![false; self.slots.len()];
        for number in names.iter().filter_map(|name| self.by_name.get(name)).flatten() {
            marks[*number as usize] = true;
        }
        marks
    }

    /// Has `candidates` be those to choose among, and throughputs be those of all that are as preferred.
    fn select(&mut self, plane: &mut Plane, request: &Request) {
        let lacking = self.lacking(plane, request.needed, request.now);
        self.prefer(plane, &lacking, request.now);
        if request.excluded.is_empty() {
            return self.learn(plane);
        }
        let excluded = self.named(&request.excluded);
        if self.candidates.iter().all(|number| excluded[*number as usize]) {
            let lacks = |number: usize| lacking.get(number) == Some(&true);
            let without: Vec<bool> = excluded.iter().enumerate().map(|(number, out)| *out || lacks(number)).collect();
            self.prefer(plane, &without, request.now); // others than the preferred ones may be left
        }
        self.learn(plane);
        self.candidates.retain(|number| !excluded[*number as usize]);
    }

    fn learn(&mut self, plane: &Plane) {
        if self.learnt.as_ref().is_some_and(|(changes, learnt)| *changes == plane.changes && *learnt == self.candidates)
        {
            return;
        }
        let views = self
            .candidates
            .iter()
            .map(|number| (&plane.seen[self.slots[*number as usize] as usize].view, self.pools[*number as usize]));
        let learnt = throughput::learn(&views);
        self.throughputs.resize(self.slots.len(), Throughput::ASSUMED);
        for (number, throughput) in self.candidates.iter().zip(learnt) {
            self.throughputs[*number as usize] = throughput;
        }
        self.learnt = Some((plane.changes, self.candidates.clone()));
        self.queues.fill((0, Queue::default()));
    }

    /// Chooses; `cached` finds what of the prompt each member has, by the index. None without candidates.
    ///
    /// # Errors
    /// Those of `cached`.
    pub fn choose<E>(
        &mut self,
        plane: &mut Plane,
        request: &Request,
        every: bool,
        cached: impl FnOnce(&Self, &[u32]) -> Result<Vec<Cached>, E>,
        keys: &[u64],
    ) -> Result<Option<Chosen>, E> {
        self.select(plane, request);
        if self.candidates.is_empty() {
            return Ok(None);
        }
        let mut cached = cached(self, &self.candidates)?;
        cached.resize(self.slots.len(), Cached::default());
        self.expect(plane, request, keys, &mut cached);
        let mut best = self.best(plane, request, &cached, every);
        if let Some(chosen) = best.as_mut() {
            let next = chosen.next.iter_mut().map(|(_, kept)| kept);
            std::iter::once(&mut chosen.first).chain(next).for_each(|kept| self.forecast(plane, request, keys, kept));
        }
        Ok(best)
    }

    /// Adds to `cached` what was just sent to candidates, and what an adapter costs there.
    fn expect(&self, plane: &mut Plane, request: &Request, keys: &[u64], cached: &mut [Cached]) {
        for number in &self.candidates {
            let row = &mut plane.rows[self.slots[*number as usize] as usize];
            let known = &mut cached[*number as usize];
            if !keys.is_empty() && row.expects() {
                let whole = self.rules.get(*number as usize).is_some_and(Rule::windowed);
                known.sent = row.expected(keys, request.now, whole);
            }
            if let Some(adapter) = request.adapter {
                known.adapter_seconds = row.adapter_seconds(adapter);
            }
        }
    }

    /// Adds to what the index predicts what requests ahead of this one will have left there.
    fn forecast(&self, plane: &Plane, request: &Request, keys: &[u64], kept: &mut Kept) {
        if kept.score.expected_tokens == kept.score.predicted_tokens {
            return;
        }
        let row = plane.look(self.slots[kept.member as usize]);
        let whole = self.rules.get(kept.member as usize).is_some_and(Rule::windowed);
        let coming = kept.view.usable(row.coming(keys, request.now, whole), &request.prompt);
        kept.forecast_tokens = kept.forecast_tokens.max(coming * request.prompt.block_size);
    }

    fn kept(&self, plane: &Plane, request: &Request, cached: &[Cached], number: u32) -> Kept {
        let member = number as usize;
        let (view, throughput) = (&plane.seen[self.slots[member] as usize].view, &self.throughputs[member]);
        let score = score(&request.prompt, view, throughput, &self.queues[member].1, &cached[member], request.now);
        let worth = request.prompt.worth(view);
        let forecast_tokens = score.predicted_tokens;
        Kept { member: number, score, view: View { worth, ..*view }, throughput: *throughput, forecast_tokens }
    }

    fn best(&mut self, plane: &Plane, request: &Request, cached: &[Cached], every: bool) -> Option<Chosen> {
        if self.weighed != request.prompt.weighed {
            self.weighed = request.prompt.weighed;
            self.queues.fill((0, Queue::default()));
        }
        let Self { slots, throughputs, candidates, costs, ranks, queues, .. } = self;
        let view = |number: u32| &plane.seen[slots[number as usize] as usize].view;
        costs.clear();
        costs.extend(candidates.iter().map(|number| {
            let member = *number as usize;
            let (seen, throughput) = (&plane.seen[slots[member] as usize], &throughputs[member]);
            let (stamp, queue) = &mut queues[member];
            if *stamp != seen.stamp {
                (*stamp, *queue) = (seen.stamp, Queue::of(&seen.view, throughput, request.prompt.worth(&seen.view)));
            }
            let score = score(&request.prompt, &seen.view, throughput, queue, &cached[member], request.now);
            Cost::of(&score, &seen.view, *number, ranks[member])
        }));
        let reported = |number: &u32| !view(*number).stale(request.now) || cached[*number as usize].sent > 0;
        let order = if candidates.iter().any(reported) { request.order } else { request.order.blind() };
        let scored = Scored { costs };
        let choice = scored.choose(order)?;
        let leading = scored.leading(&choice);
        let largest = candidates.iter().filter_map(|number| view(*number).blocks_total).max().unwrap_or(0);
        let (pools, groups) = (&self.pools, &self.groups);
        let pool = |cost: &Cost| pools[cost.member as usize];
        let group = |cost: &Cost| groups[cost.member as usize] as usize;
        let next = scored.next(order, &choice, request.more, [&pool, &group]);
        let kept = |number: &u32| self.kept(plane, request, cached, *number);
        Some(Chosen {
            choice,
            blind: order != Order::Cost,
            candidates: self.candidates.len(),
            largest,
            first: kept(&choice.first.member),
            next: next.into_iter().map(|choice| (choice, kept(&choice.first.member))).collect(),
            leading: leading.iter().map(kept).collect(),
            all: if every { self.candidates.iter().map(kept).collect() } else { Vec::new() },
        })
    }

    /// At most `count` of the candidates: those with the fewest requests, by id where these are equal.
    pub fn least_busy(&mut self, plane: &mut Plane, needed: Option<u64>, count: usize, now: f64) -> Vec<u32> {
        self.preferred(plane, needed, now);
        let order = |number: &u32| {
            (plane.seen[self.slots[*number as usize] as usize].view.requests, self.ranks[*number as usize])
        };
        let mut numbers = self.candidates.clone();
        if count < numbers.len() {
            numbers.select_nth_unstable_by_key(count, order);
            numbers.truncate(count);
        }
        numbers.sort_unstable_by_key(order);
        numbers
    }
}
