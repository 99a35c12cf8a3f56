//! A bucket of the table: one cache line of ten entries.

use super::arena::BlockId;

pub const SLOTS: usize = 10;

/// Tags and block numbers of the first `count` entries, and how many entries overflowed past this bucket.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Bucket {
    /// Little-endian pairs: the tags, then `count` and `passed`.
    lanes: [u8; 2 * LANES],
    ids: [BlockId; SLOTS],
}

const LANES: usize = SLOTS + 2;
const COUNT: usize = SLOTS;
const PASSED: usize = SLOTS + 1;

pub const EMPTY: Bucket = Bucket { lanes: [0; 2 * LANES], ids: [BlockId(0); SLOTS] };

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    /// How many entries overflowed to a later bucket.
    #[inline]
    pub fn passed(&self) -> u16 {
        self.lane(PASSED)
    }

    #[inline]
    pub fn pass(&mut self) {
        self.set_lane(PASSED, self.passed() + 1);
    }

    #[inline]
    pub fn unpass(&mut self) {
        self.set_lane(PASSED, self.passed() - 1);
    }

    /// The first entry with this tag for which `right` holds.
    #[inline]
    pub fn find(&self, tag: u16, right: impl FnMut(BlockId) -> bool) -> Option<BlockId> {
        self.place(tag, right).map(|place| self.ids[place])
    }

    /// The first entry with this tag, whoever's it is.
    #[inline]
    pub fn likely(&self, tag: u16) -> Option<BlockId> {
        self.place(tag, |_| true).map(|place| self.ids[place])
    }

    /// All entries.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = (u16, BlockId)> + '_ {
        let tags = self.lanes.as_chunks::<2>().0.iter().map(|lane| u16::from_le_bytes(*lane));
        tags.zip(self.ids).take(self.count())
    }

    /// Adds an entry; false where the bucket is full.
    #[inline]
    pub fn put(&mut self, tag: u16, id: BlockId) -> bool {
        let place = self.lane(COUNT);
        let Some(entry) = self.ids.get_mut(usize::from(place)) else {
            return false;
        };
        *entry = id;
        self.set_lane(place.into(), tag);
        self.set_lane(COUNT, place + 1);
        true
    }

    /// Divides the entries for which `own` holds between two empty buckets, by whether their tag has a bit; true where
    /// there are others.
    #[inline]
    pub fn share(&self, bit: u16, own: impl Fn(u16) -> bool, without: &mut Self, with: &mut Self) -> bool {
        let (mut fewer, mut more, mut others) = (0, 0, 0);
        for place in 0..self.count().min(SLOTS) {
            let (tag, id) = (self.lane(place), self.ids[place]);
            // Written to both, and kept in one: which it is goes by chance, so asking would be wrong every second time.
            without.set_lane(fewer, tag);
            without.ids[fewer] = id;
            with.set_lane(more, tag);
            with.ids[more] = id;
            let (own, has) = (usize::from(own(tag)), usize::from(tag & bit != 0));
            fewer += own & (1 - has);
            more += own & has;
            others += 1 - own;
        }
        for (bucket, count) in [(without, fewer), (with, more)] {
            bucket.set_lane(COUNT, u16::try_from(count).unwrap_or(0));
        }
        others > 0
    }

    /// Changes an entry's block number; false where it is not here.
    pub fn renumber(&mut self, tag: u16, id: BlockId, to: BlockId) -> bool {
        let place = self.place(tag, |other| other == id);
        if let Some(place) = place {
            self.ids[place] = to;
        }
        place.is_some()
    }

    /// Removes an entry; false where it is not here.
    #[inline]
    pub fn take(&mut self, tag: u16, id: BlockId) -> bool {
        let place = self.place(tag, |other| other == id);
        if let Some(place) = place {
            let last = self.lane(COUNT) - 1;
            self.set_lane(place, self.lane(last.into()));
            self.ids[place] = self.ids[usize::from(last)];
            self.set_lane(COUNT, last);
        }
        place.is_some()
    }

    #[inline]
    fn place(&self, tag: u16, mut right: impl FnMut(BlockId) -> bool) -> Option<usize> {
        let mut same = same_lanes(&self.lanes, tag) & ((1 << self.count()) - 1);
        while same != 0 {
            let place = same.trailing_zeros() as usize;
            if right(self.ids[place]) {
                return Some(place);
            }
            same &= same - 1;
        }
        None
    }

    pub fn len(&self) -> usize {
        self.count()
    }

    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    #[inline]
    fn count(&self) -> usize {
        self.lane(COUNT).into()
    }

    #[inline]
    fn lane(&self, number: usize) -> u16 {
        u16::from_le_bytes([self.lanes[2 * number], self.lanes[2 * number + 1]])
    }

    #[inline]
    fn set_lane(&mut self, number: usize, value: u16) {
        self.lanes[2 * number..2 * number + 2].copy_from_slice(&value.to_le_bytes());
    }
}

/// Bit n: lane n is `tag`.
#[cfg(target_arch = "x86_64")]
#[inline]
#[expect(unsafe_code, reason = "measured: a search in a bucket takes half the instructions; proof within")]
fn same_lanes(lanes: &[u8; 2 * LANES], tag: u16) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x, _mm_set1_epi16};
    let (words, _) = lanes.as_chunks::<8>();
    let word = |number: usize| i64::from_le_bytes(words[number]);
    // SAFETY: these work on values in registers alone, and ask for SSE2, which every x86_64 has.
    unsafe {
        let wanted = _mm_set1_epi16(tag.cast_signed());
        let low = _mm_cmpeq_epi16(_mm_set_epi64x(word(1), word(0)), wanted);
        let high = _mm_cmpeq_epi16(_mm_set_epi64x(0, word(2)), wanted);
        _mm_movemask_epi8(_mm_packs_epi16(low, high)).cast_unsigned()
    }
}

/// Bit n: lane n is `tag`.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn same_lanes(lanes: &[u8; 2 * LANES], tag: u16) -> u32 {
    let lanes = lanes.as_chunks::<2>().0.iter().enumerate();
    lanes.fold(0, |same, (number, lane)| same | u32::from(u16::from_le_bytes(*lane) == tag) << number)
}
