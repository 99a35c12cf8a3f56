//! `ReuseDistances`: at which place of a cache's order the blocks of a pool's requests were found.

use super::errors::guard;
use super::ints;
use crate::reuse::distances::{Asked, ReuseDistances as Inner};
use crate::reuse::histogram::Sums;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Most entries, tenants, and half-lives that may be asked for.
const MOST: usize = 1 << 22;
const MOST_TENANTS: usize = 256;
const MOST_WINDOWS: usize = 8;

/// Requests, prompt tokens, servable, served ones and those held elsewhere in a window; the seconds that it has; shares by capacity.
type Curve = (f64, f64, f64, f64, f64, f64, Vec<f64>);

#[pyclass(module = "cachefleet_native")]
pub struct ReuseDistances {
    inner: Inner,
    half_lives: Vec<f64>,
}

#[pymethods]
impl ReuseDistances {
    /// At most so many entries and tenants; windows by their half-lives in seconds, the first also by tenant.
    #[new]
    fn new(entries: usize, half_lives: Vec<f64>, tenants: usize) -> PyResult<Self> {
        if !(1..=MOST).contains(&entries) {
            return Err(PyValueError::new_err(format!("entries must be from 1 to {MOST}, got {entries}")));
        }
        if tenants > MOST_TENANTS {
            return Err(PyValueError::new_err(format!("tenants must be from 0 to {MOST_TENANTS}, got {tenants}")));
        }
        if !(1..=MOST_WINDOWS).contains(&half_lives.len())
            || half_lives.iter().any(|one| *one <= 0.0 || !one.is_finite())
        {
            return Err(PyValueError::new_err(format!(
                "half_lives must be 1 to {MOST_WINDOWS} seconds above 0, got {half_lives:?}"
            )));
        }
        guard(|| Ok(Self { inner: Inner::new(entries, &half_lives, tenants), half_lives }))
    }

    /// The largest cache, in blocks, that anybody asks for.
    fn reach(&mut self, blocks: f64) -> PyResult<()> {
        guard(|| {
            self.inner.set_reach(blocks);
            Ok(())
        })
    }

    /// A request was answered: packed keys of its prompt, the blocks of these that a cache may serve, those that its answer
    /// filled, tokens of a block, of the prompt, from cache and only held elsewhere, and its tenant's number.
    #[expect(clippy::too_many_arguments, reason = "one call a request")]
    fn note(
        &mut self,
        keys: &[u8],
        servable: usize,
        answer: usize,
        block_size: f64,
        prompt_tokens: f64,
        served_tokens: f64,
        elsewhere_tokens: f64,
        tenant: usize,
        now: f64,
    ) -> PyResult<()> {
        if block_size.is_nan() || block_size < 1.0 {
            return Err(PyValueError::new_err(format!("block_size must be at least 1, got {block_size}")));
        }
        let keys = ints::packed_keys(keys, None)?;
        let servable = servable.min(keys.len());
        let asked =
            Asked { keys, servable, answer, block_size, prompt_tokens, served_tokens, elsewhere_tokens, tenant };
        guard(|| {
            self.inner.note(&asked, now);
            Ok(())
        })
    }

    /// A window, by its number, as of now: what was asked for in it, and of the servable blocks the share that caches of
    /// these rising sizes, in blocks, would have held.
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn curve(&self, window: usize, capacities: Vec<f64>, now: f64) -> PyResult<Curve> {
        guard(|| flat(self.inner.curve(window, &capacities, now)))
    }

    /// The same of a tenant, in the first window.
    #[expect(clippy::needless_pass_by_value, reason = "extracted from Python")]
    fn tenant_curve(&self, tenant: usize, capacities: Vec<f64>, now: f64) -> PyResult<Curve> {
        guard(|| flat(self.inner.tenant_curve(tenant, &capacities, now)))
    }

    /// Begins anew for a tenant's number.
    fn forget_tenant(&mut self, tenant: usize) {
        self.inner.forget_tenant(tenant, self.half_lives[0]);
    }

    /// Entries, the blocks that they stand for, and the share of blocks that is sampled.
    fn size(&self) -> (usize, f64, f64) {
        self.inner.size()
    }
}

fn flat(told: Option<(Sums, f64, Vec<f64>)>) -> PyResult<Curve> {
    let Some((sums, seconds, shares)) = told else {
        return Err(PyValueError::new_err("there is no such window or tenant"));
    };
    Ok((
        sums.requests,
        sums.prompt_tokens,
        sums.servable_tokens,
        sums.served_tokens,
        sums.elsewhere_tokens,
        seconds,
        shares,
    ))
}
