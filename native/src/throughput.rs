//! The prefill rate and latency assumed of each worker, from what all candidates have measured.

use crate::score::View;

const DEFAULT_TOKENS_PER_SECOND: f64 = 4000.0;
const DEFAULT_INTER_TOKEN_SECONDS: f64 = 0.02;
const DEFAULT_BATCHED_TOKENS: u64 = 2048;
/// 128 KiB a token, as of a model of 8 billion parameters, at 5 GB a second.
const DEFAULT_LOADED_PER_SECOND: f64 = 40_000.0;
/// Only a worker this many times slower or faster than its pool's median is believed to be so.
const OUTLIER: f64 = 4.0;

/// What is assumed of one worker; numbers above 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Prompt tokens prefilled.
    pub tokens_per_second: f64,
    pub inter_token_seconds: f64,
    /// Tokens computed in one step.
    pub batched_tokens: u64,
    /// Tokens loaded from below the device.
    pub loaded_per_second: f64,
    /// Whether any candidate has measured that.
    pub loading_measured: bool,
}

impl Throughput {
    /// Where nobody has measured it.
    pub const ASSUMED: Self = Self {
        tokens_per_second: DEFAULT_TOKENS_PER_SECOND,
        inter_token_seconds: DEFAULT_INTER_TOKEN_SECONDS,
        batched_tokens: DEFAULT_BATCHED_TOKENS,
        loaded_per_second: DEFAULT_LOADED_PER_SECOND,
        loading_measured: false,
    };

    /// How long it takes to compute so many tokens.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2**52")]
    pub fn seconds(&self, tokens: u64) -> f64 {
        let tokens = tokens as f64;
        tokens / self.tokens_per_second + self.inter_token_seconds * whole_steps(tokens / self.batched_tokens as f64)
    }

    /// How long so many tokens take by the rate alone.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2**52")]
    pub fn rate_seconds(&self, tokens: u64) -> f64 {
        tokens as f64 / self.tokens_per_second
    }

    /// How long a token takes where many are computed.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "tokens are far fewer than 2**52")]
    pub fn token_seconds(&self) -> f64 {
        1.0 / self.tokens_per_second + self.inter_token_seconds / self.batched_tokens as f64
    }
}

/// `f64::ceil` of a number of steps, without the call that it is on processors of any age.
#[inline]
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "tokens are far fewer than 2**52")]
fn whole_steps(steps: f64) -> f64 {
    let whole = steps as i64 as f64;
    if whole < steps { whole + 1.0 } else { whole }
}

/// The throughput assumed of each worker, of which there is its view and the number of its pool.
#[must_use]
pub fn learn<'v>(workers: &(impl Iterator<Item = (&'v View, usize)> + Clone)) -> Vec<Throughput> {
    let rates = |measured: fn(&View) -> Option<f64>, default| Rates::learn(workers.clone(), measured, default);
    let prefill = rates(|view| view.tokens_per_second, DEFAULT_TOKENS_PER_SECOND);
    let latency = rates(|view| view.inter_token_seconds, DEFAULT_INTER_TOKEN_SECONDS);
    let loading = rates(|view| view.loaded_per_second, DEFAULT_LOADED_PER_SECOND);
    let of = |(view, pool): (&View, usize)| Throughput {
        tokens_per_second: prefill.resolve(pool, view.tokens_per_second),
        inter_token_seconds: latency.resolve(pool, view.inter_token_seconds),
        batched_tokens: if view.batched_tokens == 0 { DEFAULT_BATCHED_TOKENS } else { view.batched_tokens },
        loaded_per_second: loading.resolve(pool, view.loaded_per_second),
        loading_measured: loading.measured,
    };
    workers.clone().map(of).collect()
}

/// One rate of all pools. A worker has its pool's median, else that of all, else a constant; its own where that is far
/// off.
///
/// A pool is homogeneous, and a short measurement says more about its prompts than about the worker. A worker that is
/// given little to do because it once measured badly would never measure better.
struct Rates {
    of_pool: Vec<f64>,
    measured: bool,
}

impl Rates {
    fn learn<'v>(
        workers: impl Iterator<Item = (&'v View, usize)>,
        rate: fn(&View) -> Option<f64>,
        default: f64,
    ) -> Self {
        let mut by_pool: Vec<Vec<f64>> = Vec::new();
        for (view, pool) in workers {
            by_pool.resize_with(by_pool.len().max(pool + 1), Vec::new);
            by_pool[pool].extend(rate(view).filter(|value| *value > 0.0));
        }
        let mut all: Vec<f64> = by_pool.iter().flatten().copied().collect();
        let measured = !all.is_empty();
        let usual = median(&mut all).unwrap_or(default);
        Self { of_pool: by_pool.iter_mut().map(|values| median(values).unwrap_or(usual)).collect(), measured }
    }

    fn resolve(&self, pool: usize, value: Option<f64>) -> f64 {
        let usual = self.of_pool[pool];
        value.filter(|value| *value > 0.0 && !(1.0 / OUTLIER..=OUTLIER).contains(&(value / usual))).unwrap_or(usual)
    }
}

/// None of no values.
fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => Some(values[middle]),
        _ => Some((values.get(middle.wrapping_sub(1))? + values[middle]) / 2.0),
    }
}
