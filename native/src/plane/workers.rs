//! One rank of one worker as decisions see it: what it reported, what this replica and others have sent there, and what
//! its answers showed.

use super::flights::{Flights, Sent};
use super::sharing::{Load as Shared, Peers, Untold};
use crate::score::{View, WHOLE, Worth};

/// A report older than this says nothing at all.
pub const FORGET_SECONDS: f64 = 15.0;
/// A report older than this, or a stream out of step for longer, says nothing of caches.
const STALE_SECONDS: f64 = 5.0;
/// Work that is estimated is at most that, so that no sum with it overflows.
const MOST_TOKENS: u64 = 1 << 48;
/// Reports with a prefill rate that are needed before it is used.
const SAMPLES_NEEDED: u32 = 3;
/// How often a worker that refused the gateway's key is asked again, by one request each time.
pub const KEY_RETRY_SECONDS: f64 = 30.0;
/// How much earlier than computed a load is looked at again: sums of times are not exact.
const EARLY_SECONDS: f64 = 1e-6;
/// The null block, which vLLM counts and never allocates.
const OWN_BLOCKS: u64 = 1;
/// Engines do not tell how long an adapter is loaded onto the device: some hundred copies, of 84 MB in all for rank 16
/// in every layer of a model of 8 billion parameters, each begun by itself.
const ADAPTER_SECONDS: f64 = 0.05;

/// What a worker's State tells of its load.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "python", derive(pyo3::FromPyObject))]
pub struct Report {
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub running: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub waiting: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded_or_none))]
    pub waiting_tokens: Option<u64>,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub blocks_total: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub blocks_free: u64,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded_or_none))]
    pub blocks_idle: Option<u64>,
    #[cfg_attr(feature = "python", pyo3(from_py_with = crate::python::ints::bounded))]
    pub held: u64,
    pub prefill_tokens_per_second: Option<f64>,
    pub inter_token_seconds: Option<f64>,
    pub loaded_tokens_per_second: Option<f64>,
}

/// A report, and the part of its waiting work that other senders caused.
#[derive(Clone, Copy, Debug)]
struct Load {
    report: Report,
    at: f64,
    others_tokens: u64,
    others_requests: u64,
    /// Its engine serves nothing though it answers.
    suspended: bool,
    /// It takes no new work.
    leaving: bool,
}

/// How far a worker's stream of reports may be relied on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stream {
    /// It is followed, and a State has come.
    pub reported: bool,
    /// When the last State came.
    pub heard_at: f64,
    /// Since when it is out of step.
    pub out_of_step_at: Option<f64>,
}

/// What is settled of a worker when a table of workers is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    /// It may be sent anything.
    pub ready: bool,
    /// Its contract differs from the one in force.
    pub differs: bool,
    pub batched_tokens: u64,
    /// Percent of its blocks to keep free.
    pub free_percent: u64,
}

/// Adapters by hashes of their names.
#[derive(Clone, Debug, Default)]
pub struct Adapters {
    /// All that it serves; None where it does not tell.
    pub served: Option<Vec<u64>>,
    /// Those that are not on its device, which is full of others.
    pub displaced: Vec<u64>,
}

#[derive(Debug)]
pub struct Row {
    pub standing: Standing,
    pub stream: Stream,
    /// Its blocks are not in the index.
    pub unindexed: bool,
    load: Option<Load>,
    samples: u32,
    pub trust: u32,
    pub worth: Worth,
    pub adapters: Adapters,
    pub failures: u32,
    pub backoff_until: f64,
    /// It refused the gateway's key, and has not taken it since.
    pub key_refused: bool,
    pub key_retry_at: f64,
    /// Number of the last decision for it, 0 where there was none.
    pub last_used: u64,
    pub flights: Flights,
    /// Requests of other replicas.
    pub peers: Peers,
    /// What others are to be told of `flights`; None where nobody is.
    pub untold: Option<Untold>,
    /// The plane knows that there may be something to tell.
    pub noted: bool,
}

impl Default for Row {
    fn default() -> Self {
        Self {
            standing: Standing::default(),
            stream: Stream::default(),
            unindexed: false,
            load: None,
            samples: 0,
            trust: WHOLE,
            worth: Worth::UNLEARNT,
            adapters: Adapters::default(),
            failures: 0,
            backoff_until: 0.0,
            key_refused: false,
            key_retry_at: 0.0,
            last_used: 0,
            flights: Flights::default(),
            peers: Peers::default(),
            untold: None,
            noted: false,
        }
    }
}

/// How many blocks of a worker a new request may take.
///
/// From its last report: T in all (one of which vLLM keeps for itself), F free, idle cached ones included, I idle cached
/// ones. From this replica, and from others as far as they tell (`sharing`): S, what requests sent since the report take
/// of F; C, what all open requests will have filled in the end (`reservations`; of other replicas' what each computes
/// alone); G, what those needed that ended since the report.
///
/// ```text
/// free     = min(F - S, T - 1 - C)
/// reserve  = ceil((T - 1) * minFreeBlockPercent / 100)
/// required = N - shared
/// shared   = min(max(0, H - I - G), T - 1 - F)
/// ```
///
/// with N all blocks of the request and H those of its prompt that the index says are held. It has room where
/// `required <= free - reserve`.
///
/// *Free.* `F - S` counts everybody's requests as they are now; `T - 1 - C` counts those that are known alone, with the
/// output they have yet to produce and whatever the report came too early for. Each can only be too high by what the
/// other counts, so the lower holds. What unknown senders' requests have yet to produce is in neither: the reserve is for
/// that.
///
/// *Shared.* A held block is idle or in use. An idle one is one of the F, and using it takes it from them: no more than
/// I of the H can be idle. The others are in use, and sharing them takes nothing. H is of now and I of the report: a
/// block that became idle in between was in use then, and F has not grown by it yet, so this stays true except for
/// blocks stored since the report by requests that have ended, at most G of them. No more than was in use can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Blocks that requests can have.
    pub total: u64,
    /// Net of the reserve.
    pub free: u64,
    pub reserve: u64,
    /// Held blocks that may be idle.
    pub idle: u64,
    /// In use at the report.
    pub used: u64,
}

impl Room {
    /// From a report: `sent` free blocks were taken since, requests that needed `ended` have ended since, those in flight
    /// will have filled `reserved` in the end, and `percent` are to stay free. None where the number of blocks is not
    /// known.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "blocks are far fewer than 2**62, and free is no less than 0"
    )]
    pub fn of(report: &Report, sent: u64, ended: u64, reserved: i64, percent: u64) -> Option<Self> {
        if report.blocks_total == 0 {
            return None;
        }
        let total = report.blocks_total.saturating_sub(OWN_BLOCKS);
        let reserve = (total * percent).div_ceil(100);
        let free = (report.blocks_free as i64 - sent as i64).min(total as i64 - reserved) - reserve as i64;
        Some(Self {
            total,
            free: free.max(0) as u64,
            reserve,
            idle: report.blocks_idle.unwrap_or(report.blocks_free) + ended,
            used: total.saturating_sub(report.blocks_free),
        })
    }
}

impl Row {
    /// Requests of this replica and of others, by replica.
    fn all(&self) -> impl Iterator<Item = &Flights> {
        std::iter::once(&self.flights).chain(self.peers.iter().map(|peer| &peer.flights))
    }

    fn tokens(&self, now: f64) -> u64 {
        self.all().map(|flights| flights.tokens(now)).sum()
    }

    fn sequences(&self) -> u64 {
        self.all().map(|flights| flights.sequences).sum()
    }

    fn blocks_since(&self, moment: f64) -> u64 {
        self.all().map(|flights| flights.blocks_since(moment)).sum()
    }

    /// A State has come: its waiting work beyond known requests is counted as that of others.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded counts"
    )]
    pub fn reported(&mut self, report: Report, suspended: bool, leaving: bool, now: f64) {
        self.peers.expire(now);
        let others = report.waiting.saturating_sub(self.all().map(|flights| flights.waiting(now)).sum());
        let others_tokens = match report.waiting_tokens {
            Some(tokens) => tokens.saturating_sub(self.tokens(now)),
            None => ((others as f64 * self.flights.typical_tokens).round_ties_even() as u64).min(MOST_TOKENS),
        };
        let others_requests = (report.running + report.waiting).saturating_sub(self.sequences());
        self.flights.ended_blocks = 0;
        self.peers.flights().for_each(|flights| flights.ended_blocks = 0);
        self.load = Some(Load { report, at: now, others_tokens, others_requests, suspended, leaving });
        self.samples += u32::from(report.prefill_tokens_per_second.is_some_and(|rate| rate != 0.0));
        if let Some(untold) = self.untold.as_mut().filter(|_| !self.flights.is_empty()) {
            untold.all(); // as every replica does now, so that agents pass all on in one frame
        }
    }

    /// Others are told of its requests from now on, or no more.
    pub fn share(&mut self, shared: bool, now: f64) {
        self.untold = shared.then(|| Untold::of(&self.flights, now));
    }

    /// What others are to be told of its requests.
    pub fn tell(&mut self, now: f64) -> Option<Shared> {
        self.noted = false;
        self.untold.as_mut()?.tell(&self.flights, now)
    }

    /// Another replica tells of its requests; how many are new, and whether any is over.
    ///
    /// What a report before counted as that of unknown senders counts once, and so do blocks, of `block_size` tokens,
    /// that others compute there already: an engine that has computed them serves them from its cache.
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded")]
    pub fn hear(&mut self, origin: &str, mut load: Shared, block_size: u64, now: f64) -> (usize, bool) {
        for told in load.flights.iter_mut().filter(|told| !told.keys.is_empty()) {
            let there = u64::from(self.expected_from(told.skip, &told.keys, now, false));
            told.tokens = told.tokens.saturating_sub(there.saturating_sub(told.skip) * block_size);
        }
        let reported_at = self.load.map_or(f64::NEG_INFINITY, |load| load.at);
        let heard = self.peers.hear(origin, &load, reported_at, now);
        if let Some(load) = self.load.as_mut() {
            let tokens = match load.report.waiting_tokens {
                Some(_) => heard.tokens,
                None => (heard.waiting as f64 * self.flights.typical_tokens).round_ties_even() as u64,
            };
            load.others_tokens = load.others_tokens.saturating_sub(tokens);
            load.others_requests = load.others_requests.saturating_sub(heard.sequences);
        }
        (heard.begun, heard.ended)
    }

    /// The longest prefix, in blocks, that `keys` share with a prompt whose blocks are expected there.
    pub fn expected(&mut self, keys: &[u64], now: f64, whole: bool) -> u32 {
        self.expected_from(0, keys, now, whole)
    }

    /// The same of keys from block `skip` on.
    fn expected_from(&mut self, skip: u64, keys: &[u64], now: f64, whole: bool) -> u32 {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let others = self.peers.flights().filter(|flights| flights.expects());
        let most = others.map(|flights| flights.expected(skip, keys, now, whole)).max().unwrap_or(0);
        most.max(self.flights.expected(skip, keys, now, whole))
    }

    #[must_use]
    pub fn expects(&self) -> bool {
        self.all().any(Flights::expects)
    }

    /// The longest prefix, in blocks, that `keys` share with a prompt whose blocks will be there before a request that
    /// is sent now.
    #[must_use]
    pub fn coming(&self, keys: &[u64], now: f64, whole: bool) -> u32 {
        self.all().map(|flights| flights.coming(0, keys, now, whole)).max().unwrap_or(0)
    }

    /// Changes of its blocks were applied: the index knows what the worker had told until then.
    pub fn changed(&mut self) {
        self.flights.deltas += 1;
        self.peers.flights().for_each(|flights| flights.deltas += 1);
    }

    /// A request has its first token.
    pub fn landed(&mut self, number: u64) {
        if self.flights.landed(number) {
            self.untold.iter_mut().for_each(|untold| untold.changed(number));
            self.answered();
        }
    }

    /// A request is over; `answered` by the engine, or left.
    pub fn close(&mut self, number: u64, answered: bool) {
        let failed = !answered && self.flights.get(number).is_some_and(|flight| !flight.prefilled);
        if self.flights.close(number, !answered)
            && let Some(untold) = self.untold.as_mut()
        {
            if failed { untold.failed(number) } else { untold.changed(number) }
        }
        if answered {
            self.answered();
        }
    }

    /// A new epoch: what its engine and agent told and what was sent there before is gone.
    pub fn restarted(&mut self) {
        self.load = None;
        self.samples = 0;
        self.unindexed = false;
        self.key_refused = false;
        self.adapters = Adapters::default();
        self.flights.forget_prompts();
        self.peers.flights().for_each(Flights::forget_prompts);
    }

    /// A request got its first token or its end from the engine.
    pub fn answered(&mut self) {
        self.failures = 0;
        self.backoff_until = 0.0;
        self.key_refused = false;
    }

    /// It refused the gateway's key.
    pub fn refuse_key(&mut self, now: f64) {
        self.key_refused = true;
        self.key_retry_at = now + KEY_RETRY_SECONDS;
    }

    /// Decision number `number` sends a request there, which has that number, too.
    pub fn begin(&mut self, number: u64, mut sent: Sent, now: f64) {
        self.last_used = number;
        if self.key_refused {
            self.key_retry_at = now + KEY_RETRY_SECONDS; // one request is enough to find out
        }
        sent.taken = sent.blocks - self.certainly_used(sent.held, now).min(sent.blocks);
        if self.untold.is_some() {
            let there = sent.held.max(self.expected(&sent.keys, now, false).into());
            let there = usize::try_from(there).unwrap_or(usize::MAX);
            self.untold.iter_mut().for_each(|untold| untold.begun(number, there));
        }
        self.flights.begin(number, sent, now);
    }

    fn certainly_used(&self, held: u64, now: f64) -> u64 {
        let room = self.known_load(now).and_then(|load| self.room(load, 0));
        room.map_or(0, |room| held.saturating_sub(room.idle).min(room.used))
    }

    /// Whether so many new blocks take the place of cached ones there.
    #[must_use]
    pub fn evicts(&self, blocks: i64) -> bool {
        let blank = self.load.as_ref().and_then(|load| self.blank(load));
        blank.is_some_and(|blank| i64::try_from(blank).is_ok_and(|blank| blocks > blank))
    }

    fn known_load(&self, now: f64) -> Option<&Load> {
        self.load.as_ref().filter(|load| now - load.at <= FORGET_SECONDS)
    }

    fn room(&self, load: &Load, percent: u64) -> Option<Room> {
        let ended = self.all().map(|flights| flights.ended_blocks).sum();
        let reserved = self.all().map(Flights::reserved).sum();
        Room::of(&load.report, self.blocks_since(load.at), ended, reserved, percent)
    }

    /// Blocks that hold nothing: free ones less idle cached ones, as the engine or its agent counts them.
    fn blank(&self, load: &Load) -> Option<u64> {
        let report = &load.report;
        if report.blocks_total == 0 {
            return None;
        }
        let blank = match report.blocks_idle {
            Some(idle) => report.blocks_free.saturating_sub(idle),
            None => report.blocks_free.min(report.blocks_total.saturating_sub(report.held)),
        };
        Some(blank.saturating_sub(self.blocks_since(load.at)))
    }

    fn stale(&self, now: f64) -> bool {
        let late = |since: f64| now - since > STALE_SECONDS;
        !self.stream.reported || late(self.stream.heard_at) || self.stream.out_of_step_at.is_some_and(late)
    }

    /// As decisions see it, whatever the request.
    #[must_use]
    pub fn view(&self, now: f64) -> View {
        let load = self.known_load(now);
        let room = load.and_then(|load| self.room(load, self.standing.free_percent));
        let fresh = load.filter(|_| !self.stale(now) && !self.unindexed);
        let report = load.map(|load| &load.report);
        let room_of = |of: fn(&Room) -> u64| room.as_ref().map_or(0, of);
        View {
            reported_at: fresh.map(|load| load.at),
            queued_tokens: load.map_or(0, |load| load.others_tokens),
            inflight_tokens: self.tokens(now),
            tokens_per_second: report
                .filter(|_| self.samples >= SAMPLES_NEEDED)
                .and_then(|report| report.prefill_tokens_per_second),
            inter_token_seconds: report.and_then(|report| report.inter_token_seconds),
            loaded_per_second: report.and_then(|report| report.loaded_tokens_per_second),
            batched_tokens: self.standing.batched_tokens,
            blocks_total: room.map(|room| room.total),
            blocks_free: room.map(|room| room.free),
            blocks_reserved: room_of(|room| room.reserve),
            blocks_idle: room_of(|room| room.idle),
            blocks_used: room_of(|room| room.used),
            blocks_blank: load.and_then(|load| self.blank(load)),
            requests: load.map_or(0, |load| load.others_requests) + self.sequences(),
            last_used: self.last_used,
            trust: self.trust,
            worth: self.worth,
        }
    }

    /// How much it is preferred: 0 where it serves nothing, then by what speaks against it.
    #[must_use]
    pub fn preference(&self, now: f64) -> u8 {
        let against = [
            !self.standing.ready || self.known_load(now).is_some_and(|load| load.suspended),
            self.key_refused && now < self.key_retry_at,
            self.standing.differs,
            self.load.as_ref().is_some_and(|load| load.leaving),
            self.backoff_until > now,
        ];
        (0..).zip(against).find(|(_, against)| *against).map_or(5, |(place, _)| place)
    }

    /// When time alone may change what decisions see of it.
    #[must_use]
    pub fn due(&self, now: f64) -> f64 {
        let load = self.load.map(|load| [load.at + STALE_SECONDS, load.at + FORGET_SECONDS]);
        let times = [Some(self.stream.heard_at), self.stream.out_of_step_at].map(|at| at.map(|at| at + STALE_SECONDS));
        let until = [Some(self.backoff_until), Some(self.key_retry_at)];
        let flights = self.all().map(|flights| flights.due(now)).chain(self.peers.iter().map(|peer| Some(peer.due())));
        let all = until.into_iter().chain(times).chain(flights).flatten().chain(load.into_iter().flatten());
        let coming = all.filter(|due| due + EARLY_SECONDS > now);
        coming.map(|due| due - EARLY_SECONDS).fold(f64::INFINITY, f64::min)
    }

    /// Whether it told its adapters, and this is not among them.
    #[must_use]
    pub fn lacks(&self, adapter: u64) -> bool {
        self.adapters.served.as_ref().is_some_and(|served| !served.contains(&adapter))
    }

    /// How long an adapter would be loaded onto its device.
    #[must_use]
    pub fn adapter_seconds(&self, adapter: u64) -> f64 {
        if self.adapters.displaced.contains(&adapter) { ADAPTER_SECONDS } else { 0.0 }
    }
}
