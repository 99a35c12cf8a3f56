//! Requests through a fleet in time: each goes to the worker that a decision chooses, or waits until one has room.

use super::engine::{Engine, Rates, Told};
use super::learnt::{Learnt, Paid};
use super::load::{Load, Request};
use super::pool::Pool;
use crate::plane::choose::{Choice, Cost, Order, Scored};
use crate::plane::flights::{EXPECTED_SECONDS, MAX_EXPECTED, UNCACHED_WORK_SECONDS};
use crate::plane::reservations::shared_blocks;
use crate::score::{Cached, Prompt, Queue, View, score};
use crate::throughput::Throughput;
use std::collections::VecDeque;
use std::time::Instant;

/// Of an answer, decisions count so many tokens at most.
const OUTPUT_TOKENS_COUNTED: u64 = 256;
/// How often load is reported: as often decisions learn.
const REPORT_SECONDS: f64 = 1.0;
/// The clock is looked at once in so many events.
const LOOK: u32 = 256;

/// Equal workers; sizes are in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub workers: usize,
    pub blocks: usize,
    /// Idle blocks that each keeps.
    pub budget: usize,
    pub rates: Rates,
    /// Percent of its blocks that each keeps free.
    pub free_percent: usize,
    /// Share of evicted blocks that are asked for again.
    pub eviction: f64,
}

/// What came of it, in tokens of the prompts that were served, and how many had no room on any worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub prompt_tokens: u64,
    pub hit_tokens: u64,
    pub too_large: usize,
}

/// A request that was sent to a worker and is not over.
#[derive(Clone, Copy, Debug)]
struct Flight {
    number: usize,
    sent_at: f64,
    uncached: u64,
    first: bool,
}

/// An engine, and what decisions know of the requests there.
#[derive(Debug)]
struct Worker<'l> {
    engine: Engine<'l>,
    ends: Option<f64>,
    flights: Vec<Flight>,
    /// Prompts that were sent lately, whose blocks are expected there.
    recent: VecDeque<(usize, f64)>,
    last_used: u64,
    queries: u64,
    hits: u64,
}

/// Plays all requests, and counts those from number `since` on; None where that lasts beyond `until`.
#[must_use]
pub fn play(load: &Load, fleet: &Fleet, since: usize, until: Instant) -> Option<Outcome> {
    Play::new(load, fleet, since).run(until)
}

struct Play<'l> {
    load: &'l Load,
    fleet: Fleet,
    throughput: Throughput,
    workers: Vec<Worker<'l>>,
    queue: VecDeque<usize>,
    came: usize,
    since: usize,
    now: f64,
    learnt: Learnt,
    reported_at: f64,
    paid: Paid,
    decisions: u64,
    outcome: Outcome,
    costs: Vec<Cost>,
    told: Vec<Told>,
}

impl<'l> Play<'l> {
    fn new(load: &'l Load, fleet: &Fleet, since: usize) -> Self {
        let worker = |_| Worker {
            engine: Engine::new(load, fleet.rates, Pool::new(fleet.blocks, fleet.budget), since),
            ends: None,
            flights: Vec::new(),
            recent: VecDeque::new(),
            last_used: 0,
            queries: 0,
            hits: 0,
        };
        Self {
            load,
            fleet: *fleet,
            throughput: Throughput {
                tokens_per_second: fleet.rates.tokens_per_second,
                inter_token_seconds: fleet.rates.inter_token_seconds,
                batched_tokens: fleet.rates.batched_tokens,
                ..Throughput::ASSUMED
            },
            workers: (0..fleet.workers).map(worker).collect(),
            queue: VecDeque::new(),
            came: 0,
            since,
            now: 0.0,
            learnt: Learnt::default(),
            reported_at: 0.0,
            paid: Paid::default(),
            decisions: 0,
            outcome: Outcome::default(),
            costs: Vec::new(),
            told: Vec::new(),
        }
    }

    fn run(mut self, until: Instant) -> Option<Outcome> {
        let mut events = 0_u32;
        while self.next() {
            events = events.wrapping_add(1);
            if events.is_multiple_of(LOOK) && Instant::now() > until {
                return None;
            }
            self.report();
            self.place();
            self.begin();
        }
        self.outcome.hit_tokens = self.workers.iter().map(|worker| worker.engine.counted_hits).sum();
        Some(self.outcome)
    }

    /// Plays the next event: an arrival, or a step's end; false where there is none.
    fn next(&mut self) -> bool {
        let ends = self.workers.iter().enumerate().filter_map(|(place, worker)| Some((worker.ends?, place)));
        let first = ends.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        match (self.load.requests.get(self.came), first) {
            (Some(request), first) if first.is_none_or(|(at, _)| request.at <= at) => self.arrive(request.at),
            (_, Some((at, place))) => self.end(place, at),
            (_, None) => return false,
        }
        true
    }

    fn arrive(&mut self, at: f64) {
        self.now = self.now.max(at);
        let request = &self.load.requests[self.came];
        if (request.tokens + request.outputs).div_ceil(self.load.block_size) > self.fleet.blocks as u64 {
            self.outcome.too_large += 1;
        } else {
            self.outcome.prompt_tokens += if self.came < self.since { 0 } else { request.tokens };
            self.queue.push_back(self.came);
        }
        self.came += 1;
    }

    fn end(&mut self, place: usize, at: f64) {
        self.now = self.now.max(at);
        let (worker, told) = (&mut self.workers[place], &mut self.told);
        worker.ends = None;
        worker.engine.end(told);
        for one in told.drain(..) {
            worker.tell(one);
        }
    }

    /// What engines have looked up since the last report.
    fn report(&mut self) {
        if self.now - self.reported_at < REPORT_SECONDS {
            return;
        }
        self.reported_at = self.now;
        for worker in &mut self.workers {
            let (queries, hits) = (worker.engine.queries, worker.engine.hits);
            self.learnt.reported(queries - worker.queries, hits - worker.hits, self.now);
            (worker.queries, worker.hits) = (queries, hits);
        }
    }

    /// Sends requests that wait, first come first served, as long as there is room.
    fn place(&mut self) {
        while let Some(number) = self.queue.front().copied() {
            if !self.send(number) {
                return;
            }
            self.queue.pop_front();
        }
    }

    /// Begins the next step of each engine that has work: not before all requests of this moment have come.
    fn begin(&mut self) {
        let coming = self.load.requests.get(self.came).map_or(f64::INFINITY, |request| request.at);
        if coming <= self.now {
            return;
        }
        let alone = if self.queue.is_empty() { coming - self.now } else { 0.0 };
        for worker in self.workers.iter_mut().filter(|worker| worker.ends.is_none() && worker.engine.busy()) {
            worker.ends = Some(self.now + worker.engine.begin(alone));
        }
    }

    /// Decides for a request, and sends it; false where it has to wait for room.
    fn send(&mut self, number: usize) -> bool {
        let request = self.load.requests[number];
        let held: Vec<Cached> = self.workers.iter_mut().map(|one| one.expects(self.load, &request, self.now)).collect();
        let mut prompt = self.prompt(&request);
        let Some(mut choice) = self.choose(&prompt, &held) else {
            return false;
        };
        let prefix = self.prefix(&request, choice.longest);
        if choice.excess > 0.0 {
            (prompt.paid, prompt.paid_tokens) = (self.paid.of(prefix, self.now), choice.longest);
            choice = if prompt.paid > 0.0 { self.choose(&prompt, &held).unwrap_or(choice) } else { choice };
        }
        self.pay(&choice, prompt.paid, prefix);
        self.learnt.refresh(self.workers.len(), self.fleet.eviction, self.now);
        let uncached = request.tokens - choice.first.expected_tokens;
        self.learnt.sent(request.tokens, uncached);
        self.decisions += 1;
        let (place, now, decision) = (choice.first.member as usize, self.now, self.decisions);
        self.workers[place].send(number, uncached, &prompt, now, decision);
        true
    }

    fn prompt(&self, request: &Request) -> Prompt {
        let (size, answer) = (self.load.block_size, request.outputs.min(OUTPUT_TOKENS_COUNTED));
        Prompt {
            tokens: request.tokens,
            block_size: size,
            usable_blocks: request.usable(size) as u64,
            needed_blocks: (request.tokens + answer).div_ceil(size),
            paid: 0.0,
            paid_tokens: 0,
            weighed: true,
        }
    }

    /// The last block of so many tokens of a prompt.
    fn prefix(&self, request: &Request, tokens: u64) -> u32 {
        let blocks = usize::try_from(tokens / self.load.block_size).unwrap_or(usize::MAX);
        let last = blocks.checked_sub(1).and_then(|last| self.load.prompt(request).get(last));
        last.copied().unwrap_or(u32::MAX)
    }

    /// None where no worker has room.
    fn choose(&mut self, prompt: &Prompt, held: &[Cached]) -> Option<Choice> {
        let Self { costs, workers, fleet, throughput, learnt, now, .. } = self;
        costs.clear();
        for ((member, worker), held) in (0..).zip(&*workers).zip(held) {
            let view = View { worth: learnt.worth, ..worker.view(fleet, *now) };
            let queue = Queue::of(&view, throughput, view.worth);
            costs.push(Cost::of(&score(prompt, &view, throughput, &queue, held, *now), &view, member, member));
        }
        Scored { costs }.choose(Order::Cost).filter(|choice| choice.first.fits)
    }

    /// The request waits for a prefix, or computes a copy of it for what others have waited.
    fn pay(&mut self, choice: &Choice, paid: f64, prefix: u32) {
        if paid > 0.0 && choice.first.expected_tokens < choice.longest {
            self.paid.spend(prefix);
        } else if choice.excess > 0.0 {
            self.paid.add(prefix, choice.excess, self.now);
        }
    }
}

impl Worker<'_> {
    /// Blocks of a prompt that are there, and those that will be.
    fn expects(&mut self, load: &Load, request: &Request, now: f64) -> Cached {
        let flights = &self.flights;
        let works = |number| flights.iter().any(|one: &Flight| one.number == number && !one.first);
        self.recent
            .retain(|(number, at)| now - at < EXPECTED_SECONDS || now - at < UNCACHED_WORK_SECONDS && works(*number));
        let (prompt, usable) = (load.prompt(request), request.usable(load.block_size));
        let held = self.engine.pool.held(prompt, usable);
        let mut best = held;
        for (number, _) in &self.recent {
            let other = load.prompt(&load.requests[*number]);
            if other.get(best).is_some_and(|block| prompt.get(best) == Some(block)) {
                best = best.max(shared_blocks(prompt, other, 0));
            }
        }
        let [matched, sent] = [held, best].map(|blocks| u32::try_from(blocks.min(usable)).unwrap_or(u32::MAX));
        Cached { matched, sent, ..Cached::default() }
    }

    /// The worker as a decision sees it.
    fn view(&self, fleet: &Fleet, now: f64) -> View {
        let pool = &self.engine.pool;
        let reserve = (fleet.blocks * fleet.free_percent).div_ceil(100);
        let working = self.flights.iter().filter(|one| !one.first && now - one.sent_at < UNCACHED_WORK_SECONDS);
        View {
            reported_at: Some(now),
            inflight_tokens: working.map(|flight| flight.uncached).sum(),
            batched_tokens: fleet.rates.batched_tokens,
            blocks_total: Some(fleet.blocks as u64),
            blocks_free: Some(pool.free().saturating_sub(self.engine.coming() + reserve) as u64),
            blocks_idle: pool.idle() as u64,
            blocks_used: (fleet.blocks - pool.free()) as u64,
            blocks_blank: Some(pool.blank() as u64),
            requests: self.flights.len() as u64,
            last_used: self.last_used,
            ..View::UNKNOWN
        }
    }

    fn send(&mut self, number: usize, uncached: u64, prompt: &Prompt, now: f64, decision: u64) {
        let needed = usize::try_from(prompt.needed_blocks).unwrap_or(usize::MAX);
        self.flights.push(Flight { number, sent_at: now, uncached, first: false });
        self.recent.push_back((number, now));
        if self.recent.len() > MAX_EXPECTED {
            self.recent.pop_front();
        }
        self.last_used = decision;
        let there = usize::try_from((prompt.tokens - uncached) / prompt.block_size).unwrap_or(usize::MAX);
        self.engine.add(number, needed, there);
    }

    fn tell(&mut self, told: Told) {
        if told.over {
            self.flights.retain(|flight| flight.number != told.number);
        } else if let Some(flight) = self.flights.iter_mut().find(|flight| flight.number == told.number) {
            flight.first = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Fleet, Outcome, play};
    use crate::outline::engine::Rates;
    use crate::outline::load::{Load, tests::load};
    use std::time::{Duration, Instant};

    const RATES: Rates = Rates { tokens_per_second: 100.0, inter_token_seconds: 0.02, batched_tokens: 64, running: 8 };

    fn fleet(workers: usize, budget: usize) -> Fleet {
        Fleet { workers, blocks: 64, budget, rates: RATES, free_percent: 5, eviction: 1.0 }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn turns(conversations: u64, rounds: u64, more: &[(f64, u64, u64, &[u64])]) -> Load {
        let keys = |turn: u64| -> Vec<u64> {
            let (talk, round) = (turn % conversations, turn / conversations);
            (0..4 * (round + 1)).map(|block| talk << 32 | block).collect()
        };
        let prompts: Vec<Vec<u64>> = (0..conversations * rounds).map(keys).collect();
        let moments = (0_u32..).map(|turn| 5.0 * f64::from(turn));
        let requests = moments.zip(&prompts).map(|(at, keys)| (at, 4 * keys.len() as u64 + 1, 2, keys.as_slice()));
        load(4, &requests.chain(more.iter().copied()).collect::<Vec<_>>())
    }

    #[test]
    fn conversations_find_their_earlier_turns_where_caches_hold_them() {
        let load = turns(4, 3, &[]);
        let all = Outcome { prompt_tokens: 4 * (17 + 33 + 49), hit_tokens: 4 * (16 + 32), too_large: 0 };
        assert_eq!(play(&load, &fleet(2, 32), 0, later()), Some(all));
        assert_eq!(play(&load, &fleet(1, 0), 0, later()), Some(Outcome { hit_tokens: 0, ..all }));
        let last = Outcome { prompt_tokens: 4 * 49, hit_tokens: 4 * 32, too_large: 0 };
        assert_eq!(play(&load, &fleet(2, 32), 8, later()), Some(last));
    }

    #[test]
    fn one_that_no_worker_can_ever_serve_is_left_out() {
        let load = turns(1, 1, &[(9.0, 400, 2, &[])]);
        let told = play(&load, &fleet(1, 8), 0, later()).expect("time");
        assert_eq!((told.prompt_tokens, told.too_large), (17, 1));
    }

    #[test]
    fn it_stops_where_it_lasts_too_long() {
        assert_eq!(play(&turns(100, 4, &[]), &fleet(1, 8), 0, Instant::now()), None);
    }
}
