//! Scores workers for a prompt, bit for bit as `controlplane/cachefleet_controlplane/routing/scoring.py` does.

/// Costs within this share of the cheapest are a tie.
const TIE: f64 = 0.05;

/// A candidate's load. Rates are resolved already; `None` is unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub stale: bool,
    pub queued_tokens: u64,
    pub inflight_tokens: u64,
    pub tokens_per_second: f64,
    pub inter_token_seconds: f64,
    pub batched_tokens: u64,
    pub blocks_free: Option<u64>,
    pub blocks_blank: Option<u64>,
    pub requests: u64,
    pub last_used: u64,
    /// Parts in `WHOLE` of its matched blocks, and of those just sent there, that are counted on.
    pub trust: u32,
    /// Share of evicted tokens that will be computed again because of it.
    pub eviction: f64,
    /// Requests that wait for each second of a queue.
    pub delayed: f64,
    /// Seconds of queue that are there on the mean.
    pub standing: f64,
    /// Tokens a second loaded from below the device.
    pub loaded_per_second: f64,
    /// How long the adapter that is asked for would be loaded onto the device.
    pub adapter_seconds: f64,
}

/// Trust in a worker whose blocks have all been served so far.
pub const WHOLE: u32 = 1000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prompt {
    pub tokens: u64,
    pub block_size: u64,
    /// Blocks that the prompt and the start of its answer fill.
    pub needed_blocks: u64,
    /// Seconds of waiting that have paid for a copy of its prefix.
    pub paid: f64,
    /// Tokens of that prefix: nothing is taken off for who is expected to hold all of it.
    pub paid_tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Index among the candidates.
    pub candidate: usize,
    pub matched_blocks: u32,
    pub expected_tokens: u64,
    pub evicted_tokens: u64,
    pub seconds: f64,
    /// Seconds for the work that waits there already, alone.
    pub waiting_seconds: f64,
    pub fits: bool,
}

/// Why the first candidate was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    LongestPrefix,
    LoadOverPrefix,
    Cold,
    LoadOnly,
    NoFit,
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

impl Prompt {
    /// Its blocks that a hit can have: all but the one with its last token.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "callers bound a prompt's tokens")]
    pub fn usable_blocks(&self) -> usize {
        self.tokens.saturating_sub(1).checked_div(self.block_size).unwrap_or(0) as usize
    }

    fn usable_tokens(&self, blocks: u64) -> u64 {
        match (self.tokens.checked_sub(1), self.block_size) {
            (None, _) | (_, 0) => 0,
            (Some(most), size) => blocks.min(most / size) * size,
        }
    }
}

/// The cost of a prompt on a candidate that holds `matched` of its blocks, could load `loadable` that follow them, and
/// was just sent `sent`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2**52")]
pub fn score(prompt: &Prompt, load: &Load, candidate: usize, matched: u32, loadable: u32, sent: u32) -> Score {
    let counted = |blocks: u32| u64::from(blocks) * u64::from(load.trust) / u64::from(WHOLE);
    let (reported, below) = if load.stale { (0, 0) } else { (matched, matched + loadable) };
    let there = prompt.usable_tokens(counted(reported.max(sent)));
    let expected_tokens = there.max(prompt.usable_tokens(counted(below)));
    let evicted_tokens = evicted(prompt, load, there);
    let loading = (expected_tokens - there) as f64 / load.loaded_per_second;
    let waiting = load.queued_tokens + load.inflight_tokens;
    let work = (waiting + prompt.tokens - expected_tokens) as f64;
    let time = |work: f64| {
        work / load.tokens_per_second + load.inter_token_seconds * (work / load.batched_tokens as f64).ceil()
    };
    let (before, own) = (time(waiting as f64), time(work));
    let others = load.delayed * (load.standing + before + (own - before) / 2.0);
    let paid = if expected_tokens < prompt.paid_tokens { prompt.paid } else { 0.0 };
    let lost = load.eviction * evicted_tokens as f64 / load.tokens_per_second;
    Score {
        candidate,
        matched_blocks: matched,
        expected_tokens,
        evicted_tokens,
        seconds: own.max(own + (own - before) * others + lost * (1.0 + others) - paid) + loading + load.adapter_seconds,
        waiting_seconds: before,
        fits: load.stale || load.requests == 0 || load.blocks_free.is_none_or(|free| prompt.needed_blocks <= free),
    }
}

fn evicted(prompt: &Prompt, load: &Load, expected: u64) -> u64 {
    match load.blocks_blank {
        Some(blank) if !load.stale && prompt.block_size > 0 => {
            let new = prompt.needed_blocks.saturating_sub(expected / prompt.block_size);
            new.saturating_sub(blank).saturating_mul(prompt.block_size)
        }
        _ => 0,
    }
}

/// The best and the second best candidate by cost, or where `blind` by waiting work alone. None without candidates.
#[must_use]
pub fn choose(scores: &[Score], loads: &[Load], names: &[String], blind: bool) -> Option<Choice> {
    let pick = |besides: Option<usize>| {
        let pool = scores.iter().filter(move |score| Some(score.candidate) != besides).copied();
        let any_fits = pool.clone().any(|score| score.fits);
        cheapest(pool.filter(move |score| score.fits || !any_fits), loads, names, blind || !any_fits)
    };
    let first = pick(None)?;
    let longest = scores.iter().map(|score| score.expected_tokens).max().unwrap_or(0);
    let reason = match (first.fits, blind) {
        (false, _) => Reason::NoFit,
        (true, true) => Reason::LoadOnly,
        (true, false) if longest == 0 => Reason::Cold,
        (true, false) if first.expected_tokens == longest => Reason::LongestPrefix,
        (true, false) => Reason::LoadOverPrefix,
    };
    let excess = if blind || longest == 0 || first.expected_tokens < longest { 0.0 } else { excess(scores, &first) };
    Some(Choice { first, second: pick(Some(first.candidate)), reason, longest, excess })
}

fn excess(scores: &[Score], first: &Score) -> f64 {
    let others = scores.iter().filter(|score| score.fits && score.candidate != first.candidate);
    let shortest = others.map(|score| score.waiting_seconds).fold(f64::INFINITY, f64::min);
    (first.waiting_seconds - shortest).max(0.0)
}

fn cheapest(pool: impl Iterator<Item = Score> + Clone, loads: &[Load], names: &[String], blind: bool) -> Option<Score> {
    let cost = |score: &Score| if blind { score.waiting_seconds } else { score.seconds };
    let bound = pool.clone().map(|score| cost(&score)).fold(f64::INFINITY, f64::min) * (1.0 + TIE);
    pool.filter(|score| cost(score) <= bound).min_by(|a, b| {
        let prefix = if blind { std::cmp::Ordering::Equal } else { b.expected_tokens.cmp(&a.expected_tokens) };
        let (ours, theirs) = (&loads[a.candidate], &loads[b.candidate]);
        prefix
            .then_with(|| ours.requests.cmp(&theirs.requests))
            .then_with(|| ours.last_used.cmp(&theirs.last_used))
            .then_with(|| names[a.candidate].cmp(&names[b.candidate]))
    })
}
