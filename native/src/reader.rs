//! Reading numbers from bytes that may end too soon.

/// The bytes end before what was to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short;

#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// # Errors
    /// Fewer bytes are left.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], Short> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(Short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// # Errors
    /// Fewer bytes are left.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// # Errors
    /// Fewer bytes are left.
    pub fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    /// # Errors
    /// Fewer bytes are left.
    pub fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    /// `keys` packed keys.
    ///
    /// # Errors
    /// Fewer bytes are left.
    pub fn keys(&mut self, keys: usize) -> Result<Vec<u64>, Short> {
        let data = self.take(keys.checked_mul(8).ok_or(Short)?)?;
        unpack(data).ok_or(Short)
    }
}

/// A block key in memory: as a number, or packed.
pub trait Key {
    fn key(&self) -> u64;
}

impl Key for u64 {
    #[inline]
    fn key(&self) -> u64 {
        *self
    }
}

/// Packed: little-endian.
impl Key for [u8; 8] {
    #[inline]
    fn key(&self) -> u64 {
        u64::from_le_bytes(*self)
    }
}

/// Unpacks keys, which are little-endian u64 in frames. None where the length is no multiple of 8.
#[must_use]
pub fn unpack(data: &[u8]) -> Option<Vec<u64>> {
    let (words, rest) = data.as_chunks::<8>();
    rest.is_empty().then(|| words.iter().map(|word| u64::from_le_bytes(*word)).collect())
}
