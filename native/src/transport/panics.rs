//! Panics of requests: each costs the one that it happens in, and is counted.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

/// How many requests panicked.
#[derive(Default)]
pub struct Panics(AtomicU64);

impl Panics {
    /// Panics so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one.
    pub fn note(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// What `work` returns; None where it panicked, after which it is not polled again.
    pub async fn caught<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
            polled.map_or_else(|_| Poll::Ready(None), |polled| polled.map(Some))
        })
        .await
        .or_else(|| {
            self.note();
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Panics;

    #[tokio::test]
    async fn counts_what_panics_and_passes_on_what_does_not() {
        let panics = Panics::default();
        assert_eq!(panics.caught(async { 1 }).await, Some(1));
        assert_eq!(panics.caught(async { panic!("on purpose") }).await, None::<()>);
        assert_eq!(panics.count(), 1);
    }
}
