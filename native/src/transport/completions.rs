//! What has happened and Python is to be told, in order; a pipe's reading end is readable while there is anything.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::mem::{replace, take};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Queue of `T` from many threads to the one that polls the pipe. A byte or two are in the pipe at most.
pub struct Completions<T> {
    waiting: Mutex<Waiting<T>>,
    reader: PipeReader,
    writer: PipeWriter,
}

struct Waiting<T> {
    told: Vec<T>,
    /// A byte is in the pipe, or about to be.
    signalled: bool,
}

impl<T> Completions<T> {
    /// Makes an empty queue; an error where the process has no file descriptors left.
    ///
    /// # Errors
    /// The pipe cannot be made.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        let waiting = Waiting { told: Vec::new(), signalled: false };
        Ok(Self { waiting: Mutex::new(waiting), reader, writer })
    }

    /// Adds one; wakes whoever polls the pipe, unless it has been woken already.
    pub fn push(&self, told: T) {
        let mut waiting = self.lock();
        waiting.told.push(told);
        let signalled = replace(&mut waiting.signalled, true);
        drop(waiting); // or who is woken would have to wait for it
        if !signalled {
            let _ = (&self.writer).write_all(&[0]); // it fails only where nobody is there to be woken
        }
    }

    /// Takes all that there is.
    pub fn take(&self) -> Vec<T> {
        let mut waiting = self.lock();
        let (told, signalled) = (take(&mut waiting.told), replace(&mut waiting.signalled, false));
        drop(waiting);
        if signalled {
            let _ = (&self.reader).read_exact(&mut [0]); // it is there, or about to be
        }
        told
    }

    /// Descriptor of the pipe's reading end.
    pub fn descriptor(&self) -> RawFd {
        self.reader.as_raw_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Completions;

    #[test]
    fn takes_all_in_order_and_wakes_once() {
        let completions = Completions::new().unwrap();
        assert!(completions.take().is_empty());
        for told in 0..3 {
            completions.push(told);
        }
        assert_eq!(completions.take(), [0, 1, 2]);
        assert!(completions.take().is_empty());
        completions.push(3);
        assert_eq!(completions.take(), [3]);
    }
}
