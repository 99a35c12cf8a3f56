//! What requests asked for, by where in the stack it was found: a window of exponentially falling weight.

/// Places of twice the depth are so many buckets further: each is 4.4 % wide.
const A_DOUBLING: f64 = 16.0;
/// Deeper ones count as never found.
const BUCKETS: usize = 16 * 36;
/// Weights are brought back to 1 when they have grown so far.
const TOO_HEAVY: f64 = 1e12;

/// What requests of the window asked for, in tokens but for `looked_up`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    pub requests: f64,
    pub prompt_tokens: f64,
    /// Of these, those in blocks that a cache may serve.
    pub servable_tokens: f64,
    /// Of these, those that came from cache.
    pub served_tokens: f64,
    /// Of these, those that only other workers had.
    pub elsewhere_tokens: f64,
    /// Blocks that a cache may serve.
    pub servable: f64,
    /// Of these, those that the sample stands for too few of, which may be less than 0.
    pub unsampled: f64,
}

/// A window in which a request counts half after `half_life` seconds.
#[derive(Debug)]
pub struct Histogram {
    half_life: f64,
    /// Blocks found at places up to each bucket's end, in the weight of `since`.
    found: Vec<f64>,
    sums: Sums,
    began: Option<f64>,
    /// The moment at which a weight is 1.
    since: f64,
}

impl Histogram {
    #[must_use]
    pub fn new(half_life: f64) -> Self {
        Self { half_life, found: Vec::new(), sums: Sums::default(), began: None, since: 0.0 }
    }

    /// The weight of what happens at `now`, to be passed to what adds it.
    pub fn weight(&mut self, now: f64) -> f64 {
        if self.began.is_none() {
            self.began = Some(now);
            self.since = now;
        }
        let weight = ((now - self.since) / self.half_life).exp2();
        if weight < TOO_HEAVY {
            return weight;
        }
        self.found.iter_mut().for_each(|blocks| *blocks /= weight);
        self.sums = self.sums.times(1.0 / weight);
        self.since = now;
        1.0
    }

    /// A request.
    pub fn count(&mut self, request: &Sums, weight: f64) {
        self.sums = self.sums.plus(&request.times(weight));
    }

    /// Blocks found at a place, which is at least 1.
    pub fn find(&mut self, place: f64, blocks: f64) {
        let bucket = bucket(place);
        if bucket >= BUCKETS {
            return;
        }
        if self.found.len() <= bucket {
            self.found.resize(bucket + 1, 0.0);
        }
        self.found[bucket] += blocks;
    }

    /// Sums as of `now`, and the seconds that the window has of it.
    #[must_use]
    pub fn sums(&self, now: f64) -> (Sums, f64) {
        let Some(began) = self.began else {
            return (Sums::default(), 0.0);
        };
        let faded = ((self.since - now) / self.half_life).exp2();
        let whole = self.half_life / std::f64::consts::LN_2;
        (self.sums.times(faded), whole * (1.0 - ((began - now) / self.half_life).exp2()))
    }

    /// Of the servable blocks, the share that caches of these sizes, in blocks, would have held; they rise.
    ///
    /// Blocks that a sample stands for too few or too many of are those asked for most, which all caches hold.
    #[must_use]
    pub fn shares(&self, capacities: &[f64]) -> Vec<f64> {
        let (mut sum, mut next) = (self.sums.unsampled, 0);
        let servable = self.sums.servable.max(f64::MIN_POSITIVE);
        capacities
            .iter()
            .map(|capacity| {
                if *capacity < 1.0 {
                    return 0.0;
                }
                let (last, within) = position(*capacity);
                while next < last.min(self.found.len()) {
                    sum += self.found[next];
                    next += 1;
                }
                let part = self.found.get(last).map_or(0.0, |blocks| blocks * within);
                ((sum + part) / servable).clamp(0.0, 1.0)
            })
            .collect()
    }
}

impl Sums {
    fn times(&self, factor: f64) -> Self {
        Self {
            requests: self.requests * factor,
            prompt_tokens: self.prompt_tokens * factor,
            servable_tokens: self.servable_tokens * factor,
            served_tokens: self.served_tokens * factor,
            elsewhere_tokens: self.elsewhere_tokens * factor,
            servable: self.servable * factor,
            unsampled: self.unsampled * factor,
        }
    }

    fn plus(&self, other: &Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            servable_tokens: self.servable_tokens + other.servable_tokens,
            served_tokens: self.served_tokens + other.served_tokens,
            elsewhere_tokens: self.elsewhere_tokens + other.elsewhere_tokens,
            servable: self.servable + other.servable,
            unsampled: self.unsampled + other.unsampled,
        }
    }
}

/// The bucket of a place from 1 on: a cache of C blocks holds the places up to C, so a bucket has those above its begin.
fn bucket(place: f64) -> usize {
    let (bucket, within) = position(place);
    if within == 0.0 { bucket.saturating_sub(1) } else { bucket }
}

/// The bucket that a size falls into, and how much of it: 1 is the begin of the second, as the first has place 1 alone.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes are from 1 on, and doublings few")]
fn position(size: f64) -> (usize, f64) {
    let exact = 1.0 + A_DOUBLING * size.max(1.0).log2();
    (exact as usize, exact.fract())
}

#[cfg(test)]
mod tests {
    use super::{Histogram, Sums};

    #[test]
    fn a_cache_holds_the_places_up_to_its_size() {
        let mut window = Histogram::new(60.0);
        let weight = window.weight(0.0);
        for place in [1.0, 2.0, 64.0, 4096.0] {
            window.find(place, weight);
        }
        window.count(&Sums { servable: 8.0, ..Sums::default() }, weight);
        assert_eq!(window.shares(&[0.0, 1.0, 2.0, 60.0, 64.0, 4096.0]), [0.0, 0.125, 0.25, 0.25, 0.375, 0.5]);
    }

    #[test]
    fn requests_count_half_after_the_half_life_and_shares_stay() {
        let mut window = Histogram::new(60.0);
        for second in 0..6000_i32 {
            let weight = window.weight(f64::from(second));
            window.find(2.0, weight);
            window.count(&Sums { requests: 1.0, servable: 2.0, ..Sums::default() }, weight);
        }
        let (sums, seconds) = window.sums(6000.0);
        assert!((sums.requests / seconds - 1.0).abs() < 0.01, "{} in {seconds} s", sums.requests);
        assert!((window.shares(&[4.0])[0] - 0.5).abs() < 1e-9);
        assert!((window.sums(6060.0).0.requests * 2.0 - sums.requests).abs() < 1e-6);
    }
}
