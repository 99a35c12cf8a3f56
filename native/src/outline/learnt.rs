//! What decisions learn as requests go by: what work costs others, as `workers/worth/pool_worth.py` has it, and waiting for
//! a prefix's holder that pays for a copy, as `workers/worth/paid_waiting.py` does.

use crate::score::Worth;
use std::collections::VecDeque;

/// Sums of a pool's load count half after so long.
const HALF_LIFE_SECONDS: f64 = 300.0;
/// A pool is watched for so long before anything is said of its load.
const SECONDS_NEEDED: f64 = 60.0;
const REQUESTS_NEEDED: f64 = 8.0;
/// How often decisions see what has been learnt.
const REFRESH_SECONDS: f64 = 5.0;
/// Waiting counts half after so long.
const PAID_HALF_LIFE_SECONDS: f64 = 10.0;
const MAX_PREFIXES: usize = 256;

/// What a pool shows of its load; `now` never goes back.
#[derive(Debug)]
pub struct Learnt {
    at: Option<f64>,
    seconds: f64,
    asked: f64,
    computed: f64,
    requests: f64,
    tokens: f64,
    work: f64,
    squares: f64,
    refreshed_at: f64,
    /// As decisions see it.
    pub worth: Worth,
}

impl Default for Learnt {
    fn default() -> Self {
        Self {
            at: None,
            seconds: 0.0,
            asked: 0.0,
            computed: 0.0,
            requests: 0.0,
            tokens: 0.0,
            work: 0.0,
            squares: 0.0,
            refreshed_at: f64::NEG_INFINITY,
            worth: Worth::UNLEARNT,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2**52")]
impl Learnt {
    /// Engines have looked up so many tokens, and found so many.
    pub fn reported(&mut self, queries: u64, hits: u64, now: f64) {
        if let Some(at) = self.at.filter(|at| now > *at) {
            self.fade(now - at);
        }
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
        self.asked += queries as f64;
        self.computed += queries.saturating_sub(hits) as f64;
    }

    /// A request is sent.
    pub fn sent(&mut self, tokens: u64, uncached: u64) {
        let work = uncached as f64;
        self.requests += 1.0;
        self.tokens += tokens as f64;
        self.work += work;
        self.squares += work * work;
    }

    /// Has decisions see what has been learnt of so many workers, now and then.
    pub fn refresh(&mut self, workers: usize, eviction: f64, now: f64) {
        if now - self.refreshed_at >= REFRESH_SECONDS {
            self.refreshed_at = now;
            self.worth = self.told(workers as f64, eviction);
        }
    }

    fn told(&self, workers: f64, eviction: f64) -> Worth {
        let known = self.seconds >= SECONDS_NEEDED && self.requests >= REQUESTS_NEEDED;
        if !known || self.tokens == 0.0 || self.work == 0.0 || self.asked == 0.0 {
            return Worth::UNLEARNT;
        }
        let each = 1.0 / (self.seconds * workers);
        Worth {
            eviction,
            requests_per_second: self.asked * self.requests / self.tokens * each,
            computed_per_second: self.computed * each,
            request_tokens: self.squares / self.work,
        }
    }

    fn fade(&mut self, seconds: f64) {
        let kept = (-seconds / HALF_LIFE_SECONDS).exp2();
        self.seconds = self.seconds * kept + (1.0 - kept) * HALF_LIFE_SECONDS / std::f64::consts::LN_2;
        for sum in [
            &mut self.asked,
            &mut self.computed,
            &mut self.requests,
            &mut self.tokens,
            &mut self.work,
            &mut self.squares,
        ] {
            *sum *= kept;
        }
    }
}

/// Seconds waited by prefix, each named by its last block.
#[derive(Debug, Default)]
pub struct Paid(VecDeque<(u32, f64, f64)>);

impl Paid {
    /// Seconds waited for it, as they count now.
    #[must_use]
    pub fn of(&self, prefix: u32, now: f64) -> f64 {
        let known = self.0.iter().find(|(known, ..)| *known == prefix);
        known.map_or(0.0, |(_, seconds, at)| seconds * (-(now - at) / PAID_HALF_LIFE_SECONDS).exp2())
    }

    /// A request waits there for so much longer.
    pub fn add(&mut self, prefix: u32, seconds: f64, now: f64) {
        let waited = self.of(prefix, now) + seconds;
        self.spend(prefix);
        self.0.push_back((prefix, waited, now));
        if self.0.len() > MAX_PREFIXES {
            self.0.pop_front();
        }
    }

    /// A copy is being computed.
    pub fn spend(&mut self, prefix: u32) {
        self.0.retain(|(known, ..)| *known != prefix);
    }
}

#[cfg(test)]
mod tests {
    use super::{Learnt, Paid};
    use crate::score::Worth;

    #[test]
    fn nothing_is_said_of_a_pool_that_was_watched_for_less_than_a_minute() {
        let mut learnt = Learnt::default();
        for second in 0..40 {
            learnt.reported(200, 100, f64::from(second));
            learnt.sent(200, 100);
            learnt.refresh(2, 0.5, f64::from(second));
        }
        assert_eq!(learnt.worth, Worth::UNLEARNT);
        for second in 40..80 {
            learnt.reported(200, 100, f64::from(second));
            learnt.sent(200, 100);
            learnt.refresh(2, 0.5, f64::from(second));
        }
        let told = learnt.worth;
        assert!((told.requests_per_second - 0.5).abs() < 0.02, "{told:?}");
        assert!((told.computed_per_second - 50.0).abs() < 2.0 && (told.request_tokens - 100.0).abs() < 1e-6);
    }

    #[test]
    fn waiting_fades_is_spent_and_is_known_of_so_many_prefixes() {
        let mut paid = Paid::default();
        paid.add(1, 4.0, 0.0);
        paid.add(1, 1.0, 10.0);
        assert!((paid.of(1, 10.0) - 3.0).abs() < 1e-9);
        (2..258).for_each(|prefix| paid.add(prefix, 1.0, 10.0));
        assert!((paid.of(1, 10.0)).abs() < 1e-9, "the one waited for least lately is dropped");
        paid.spend(2);
        assert!((paid.of(2, 10.0)).abs() < 1e-9 && paid.of(3, 10.0) > 0.9);
    }
}
