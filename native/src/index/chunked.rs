//! A vector that grows by whole chunks, so that growing never moves what is there.

/// Elements of one chunk.
const CHUNK: usize = 4096;

#[derive(Debug)]
pub struct Chunked<T> {
    chunks: Vec<Box<[T]>>,
    len: usize,
}

impl<T: Clone> Chunked<T> {
    pub fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    /// Appends a copy of `value` and gives its place.
    pub fn push(&mut self, value: T) -> u32 {
        let place = u32::try_from(self.len).expect("bounded by the index's own limits");
        if self.len == self.chunks.len() * CHUNK {
            self.chunks.push(vec![value.clone(); CHUNK].into_boxed_slice());
        }
        self.len += 1;
        self[place] = value;
        place
    }
}

impl<T> Chunked<T> {
    #[must_use]
    pub fn len(&self) -> u32 {
        u32::try_from(self.len).expect("push checks it")
    }

    /// Memory of the elements themselves.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<T>()
    }
}

impl<T> std::ops::Index<u32> for Chunked<T> {
    type Output = T;

    #[inline]
    fn index(&self, place: u32) -> &T {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}

impl<T> std::ops::IndexMut<u32> for Chunked<T> {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }
}
