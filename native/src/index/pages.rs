//! The pages of a run: extents that double with it, so that a long run is contiguous for the most part.

use super::arena::{Arena, CLASSES};

/// Most pages of a run: those of one extent of each size.
pub const MOST: u32 = (1 << CLASSES) - 1;
/// Pages of a stretch: more gain nothing, and what is prefetched of them may not be needed.
const LONGEST: u32 = 8;

/// Extent `n` has `1 << n` pages.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    extents: [u32; CLASSES],
    len: u32,
}

/// Adjacent pages of a run: the number of the first in the run, and where they are in the arena.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    pub number: u32,
    pub page: u32,
    pub pages: u32,
}

/// The extent of a run's page, and the page's offset in it.
#[inline]
fn at(number: u32) -> (usize, u32) {
    let extent = (number + 1).ilog2();
    (extent as usize, number + 1 - (1 << extent))
}

impl Pages {
    /// Adds an empty page for run `run`; returns it.
    pub fn push(&mut self, arena: &mut Arena, run: u32) -> u32 {
        let (extent, offset) = at(self.len);
        if offset == 0 {
            self.extents[extent] = arena.take(extent);
        }
        let page = self.extents[extent] + offset;
        arena.begin(page, run, self.len);
        self.len += 1;
        page
    }

    #[inline]
    pub fn get(&self, number: u32) -> u32 {
        let (extent, offset) = at(number);
        self.extents[extent] + offset
    }

    /// Pages `from..to`, extent by extent, at most `LONGEST` in a stretch.
    #[inline]
    pub fn stretches(&self, from: u32, to: u32) -> impl Iterator<Item = Stretch> + '_ {
        let mut number = from;
        std::iter::from_fn(move || {
            let (extent, offset) = at(number);
            let pages = ((1 << extent) - offset).min(to.saturating_sub(number)).min(LONGEST);
            let stretch = Stretch { number, page: if pages == 0 { 0 } else { self.extents[extent] + offset }, pages };
            number += pages;
            (pages > 0).then_some(stretch)
        })
    }

    /// Gives pages beyond the first `most` back, and extents that become empty.
    pub fn shorten(&mut self, most: u32, arena: &mut Arena) {
        while self.len > most {
            self.len -= 1;
            let (extent, offset) = at(self.len);
            if offset == 0 {
                arena.give_back(self.extents[extent], extent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_follow_each_other_and_double() {
        let expected = (0..CLASSES).flat_map(|extent| (0..1 << extent).map(move |offset| (extent, offset)));

        assert!(expected.eq((0..MOST).map(at)));
    }

    #[test]
    fn a_run_has_the_pages_that_it_was_given() {
        let mut arena = Arena::new();
        let mut runs = [Pages::default(), Pages::default()];
        let given: Vec<[u32; 2]> =
            (0..MOST).map(|_| [runs[0].push(&mut arena, 0), runs[1].push(&mut arena, 1)]).collect();

        for (run, pages) in runs.iter().enumerate() {
            assert!((0..MOST).all(|number| pages.get(number) == given[number as usize][run]));
            let stretches = pages.stretches(3, MOST - 5);
            let listed: Vec<u32> = stretches.flat_map(|one| one.page..one.page + one.pages).collect();
            assert!(listed.iter().eq(given[3..MOST as usize - 5].iter().map(|both| &both[run])));
        }
        let held = arena.bytes();
        for pages in &mut runs {
            pages.shorten(0, &mut arena);
        }
        for pages in &mut runs {
            (0..MOST).for_each(|_| _ = pages.push(&mut arena, 0));
        }
        assert_eq!(arena.bytes(), held);
    }
}
