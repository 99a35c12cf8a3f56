//! A vector in chunks of some megabytes: growth moves little, and random reads touch few memory pages.

use super::huge::advise;

/// Bytes of a chunk, at most.
const BYTES: usize = 1 << 24;
/// First capacity of the first chunk, in elements; it doubles up to `DOUBLED` bytes, then grows to its whole size.
const FEWEST: usize = 64;
const DOUBLED: usize = 1 << 20;

#[derive(Debug)]
pub struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Chunked<T> {
    const CHUNK: usize = 1 << (BYTES / size_of::<T>()).ilog2();

    pub fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    /// Appends a value; returns its index.
    pub fn push(&mut self, value: T) -> u32 {
        let place = u32::try_from(self.len).expect("bounded by the index's own limits");
        if self.len.is_multiple_of(Self::CHUNK) {
            self.chunks.push(Vec::new());
        }
        let small = self.chunks.len() == 1 && self.len * size_of::<T>() < DOUBLED;
        let chunk = self.chunks.last_mut().expect("one was there or is now");
        if chunk.len() == chunk.capacity() {
            let most = if small { 2 * chunk.len().max(FEWEST / 2) } else { Self::CHUNK };
            chunk.reserve_exact(most.min(Self::CHUNK) - chunk.len());
            advise(chunk);
        }
        chunk.push(value);
        self.len += 1;
        place
    }

    /// Adjacent elements; they lie in one chunk where their number is a power of two and the first a multiple of it.
    #[inline]
    #[must_use]
    pub fn slice(&self, place: u32, len: u32) -> &[T] {
        let start = place as usize % Self::CHUNK;
        &self.chunks[place as usize / Self::CHUNK][start..start + len as usize]
    }

    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.len).expect("push checks it")
    }

    /// Bytes of the elements; reserved capacity takes addresses, not memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T> std::ops::Index<u32> for Chunked<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: u32) -> &T {
        &self.chunks[place as usize / Self::CHUNK][place as usize % Self::CHUNK]
    }
}

impl<T> std::ops::IndexMut<u32> for Chunked<T> {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.chunks[place as usize / Self::CHUNK][place as usize % Self::CHUNK]
    }
}
