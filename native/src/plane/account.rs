//! The record of a candidate, as the store keeps it.

use super::table::Kept;
use serde_json::{Value, json};

/// What of a record is not its score.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub rank: u64,
    pub chosen: bool,
    pub block_size: u64,
}

/// The values of `CandidateRecord` in `controlplane/cachefleet_controlplane/store/decision_records.py`, in its order.
#[must_use]
pub fn record(kept: &Kept, worker: &str, pool: &str, now: f64, own: &Own) -> Value {
    let Kept { score, view, throughput, .. } = kept;
    json!([
        worker,
        pool,
        score.matched_blocks,
        score.predicted_tokens,
        score.expected_tokens,
        view.queued_tokens,
        view.inflight_tokens,
        score.uncached_tokens,
        score.evicted_tokens,
        throughput.tokens_per_second,
        throughput.inter_token_seconds,
        throughput.batched_tokens,
        view.requests,
        score.seconds,
        view.reported_at.map(|at| now - at),
        score.fits,
        view.worth.computed_again(score.evicted_tokens),
        score.others_seconds,
        score.paid_seconds,
        score.loaded_tokens,
        score.loading_seconds,
        throughput.loading_measured,
        score.adapter_seconds,
        score.taken_blocks,
        view.blocks_free,
        view.blocks_reserved,
        view.blocks_total,
        own.rank,
        own.chosen,
        u64::from(score.matched_blocks) * own.block_size,
    ])
}

/// The rank at the end of a worker's id; 0 where it names none.
#[must_use]
pub fn rank(id: &str) -> u64 {
    let digits = id.rsplit('#').next().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).unwrap_or(0)
}
