//! Connections that wait for their next request, each for a few seconds and on its own thread.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{ThreadId, current};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::stream::Stream;

type Waiting = HashMap<(ThreadId, Arc<str>), Vec<(Stream, Instant)>>;

pub struct Pool {
    shared: Arc<Mutex<Shared>>,
    keep_alive: Duration,
}

#[derive(Default)]
struct Shared {
    waiting: Waiting,
    sweeping: bool,
    closed: bool,
}

impl Pool {
    pub fn new(keep_alive: Duration) -> Self {
        Self { shared: Arc::default(), keep_alive }
    }

    /// The one to `origin` that was used last, of this thread; None where none waits.
    pub fn take(&self, origin: &Arc<str>) -> Option<Connection> {
        let key = (current().id(), Arc::clone(origin));
        loop {
            let (stream, since) = lock(&self.shared).waiting.get_mut(&key)?.pop()?;
            if since.elapsed() < self.keep_alive
                && let Some(connection) = Connection::waited(stream)
            {
                return Some(connection);
            }
        }
    }

    /// Has a connection of this thread wait for another request.
    pub fn put(&self, origin: Arc<str>, stream: Stream) {
        let mut shared = lock(&self.shared);
        if shared.closed {
            return;
        }
        shared.waiting.entry((current().id(), origin)).or_default().push((stream, Instant::now()));
        if !shared.sweeping {
            shared.sweeping = true;
            tokio::spawn(sweep(Arc::downgrade(&self.shared), self.keep_alive));
        }
    }

    pub fn close(&self) {
        let mut shared = lock(&self.shared);
        shared.closed = true;
        shared.waiting.clear();
    }

    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        lock(&self.shared).waiting.values().map(Vec::len).sum()
    }
}

/// Closes connections that have waited too long, until none waits.
async fn sweep(shared: Weak<Mutex<Shared>>, keep_alive: Duration) {
    loop {
        tokio::time::sleep(keep_alive / 4).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut shared = lock(&shared);
        shared.waiting.retain(|_, streams| {
            streams.retain(|(_, since)| since.elapsed() < keep_alive);
            !streams.is_empty()
        });
        if shared.waiting.is_empty() {
            shared.sweeping = false;
            return;
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
