//! The transport's threads: each runs an event loop of its own, on which whole connections stay.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

use tokio::runtime::{self, Handle};
use tokio::sync::watch;

/// Event loops, one to a thread; ended by `drop`, which waits for the threads.
pub struct Threads {
    handles: Vec<Handle>,
    next: AtomicUsize,
    end: watch::Sender<bool>,
    running: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts `count` threads, at least one.
    ///
    /// # Errors
    /// The system makes no more threads or descriptors.
    pub fn start(count: usize) -> io::Result<Self> {
        let (end, _) = watch::channel(false);
        let mut threads = Self { handles: Vec::new(), next: AtomicUsize::new(0), end, running: Vec::new() };
        for number in 0..count.max(1) {
            threads.add(number)?;
        }
        Ok(threads)
    }

    fn add(&mut self, number: usize) -> io::Result<()> {
        let event_loop = runtime::Builder::new_current_thread().enable_all().build()?;
        let mut end = self.end.subscribe();
        self.handles.push(event_loop.handle().clone());
        let run = move || {
            // An error means that the sender is gone: as good as the end.
            let _ = event_loop.block_on(end.wait_for(|ended| *ended));
            event_loop.shutdown_background();
        };
        self.running.push(Builder::new().name(format!("transport-{number}")).spawn(run)?);
        Ok(())
    }

    /// The event loop whose turn it is.
    pub fn next(&self) -> &Handle {
        &self.handles[self.next.fetch_add(1, Ordering::Relaxed) % self.handles.len()]
    }

    /// All event loops.
    pub fn all(&self) -> &[Handle] {
        &self.handles
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end.send_replace(true);
        for thread in self.running.drain(..) {
            let _ = thread.join(); // a thread that panicked has ended too
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::Threads;

    #[test]
    fn runs_what_is_spawned_and_ends() {
        let threads = Threads::start(2).unwrap();
        let (told, hears) = mpsc::channel();
        for _ in 0..4 {
            let told = told.clone();
            threads.next().spawn(async move { told.send(std::thread::current().name().map(str::to_owned)) });
        }
        let mut names: Vec<_> = (0..4).map(|_| hears.recv().unwrap().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["transport-0", "transport-0", "transport-1", "transport-1"]);
        drop(threads);
    }
}
