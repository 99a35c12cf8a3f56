//! The pages of a run: extents that grow with it, so that a long run is contiguous for the most part.

use super::arena::Arena;

const EXTENTS: usize = 11;
/// Classes of a run's extents, of which the first is its head: the last ones do not double, so that a run has few pages
/// to come.
const CLASS: [u8; EXTENTS] = [0, 1, 2, 3, 4, 4, 4, 5, 5, 5, 5];
/// Number of each extent's first page in the run.
const START: [u8; EXTENTS] = starts();
/// Extent of each page.
const EXTENT: [u8; MOST as usize] = extents();
/// Most pages of a run: those of all extents.
pub const MOST: u32 = START[EXTENTS - 1] as u32 + (1 << CLASS[EXTENTS - 1]);
/// Pages of a stretch: more gain nothing, and what is prefetched of them may not be needed.
const LONGEST: u32 = 8;

/// The first page of each extent. How many pages there are is known to the run.
#[derive(Clone, Debug, Default)]
pub struct Pages([u32; EXTENTS]);

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
    let extent = usize::from(EXTENT[number as usize]);
    (extent, number - u32::from(START[extent]))
}

const fn starts() -> [u8; EXTENTS] {
    let mut starts = [0; EXTENTS];
    let mut extent = 1;
    while extent < EXTENTS {
        starts[extent] = starts[extent - 1] + (1 << CLASS[extent - 1]);
        extent += 1;
    }
    starts
}

#[expect(clippy::cast_possible_truncation, reason = "fewer extents than that")]
const fn extents() -> [u8; MOST as usize] {
    let mut extents = [0; MOST as usize];
    let (mut page, mut extent) = (0, 0);
    while page < extents.len() {
        if extent + 1 < EXTENTS && page == START[extent + 1] as usize {
            extent += 1;
        }
        extents[page] = extent as u8;
        page += 1;
    }
    extents
}

impl Pages {
    /// Adds the empty page `number`, the next, for run `run`; returns it.
    pub fn push(&mut self, arena: &mut Arena, run: u32, number: u32) -> u32 {
        let (extent, offset) = at(number);
        if number == 0 {
            self.0[0] = arena.head(run);
            return self.0[0];
        }
        if offset == 0 {
            self.0[extent] = arena.take(CLASS[extent].into());
        }
        let page = self.0[extent] + offset;
        arena.begin(page, run, number);
        page
    }

    #[inline]
    pub fn get(&self, number: u32) -> u32 {
        let (extent, offset) = at(number);
        self.0[extent] + offset
    }

    /// Pages `from..to`, extent by extent, at most `LONGEST` in a stretch.
    #[inline]
    pub fn stretches(&self, from: u32, to: u32) -> impl Iterator<Item = Stretch> + '_ {
        let mut number = from;
        std::iter::from_fn(move || {
            if number >= to {
                return None;
            }
            let (extent, offset) = at(number);
            let pages = ((1 << CLASS[extent]) - offset).min(to - number).min(LONGEST);
            let stretch = Stretch { number, page: self.0[extent] + offset, pages };
            number += pages;
            Some(stretch)
        })
    }

    /// Gives the extents of pages `most..len` back that have none before these; the run had `len`.
    pub fn shorten(&self, len: u32, most: u32, arena: &mut Arena) {
        for (first, (start, class)) in self.0.iter().zip(START.iter().zip(CLASS)).skip(1).rev() {
            if (most..len).contains(&u32::from(*start)) {
                arena.give_back(*first, class.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::arena::CLASSES;

    #[test]
    fn extents_follow_each_other_and_none_is_smaller_than_the_one_before() {
        let expected = (0..EXTENTS).flat_map(|extent| (0..1 << CLASS[extent]).map(move |offset| (extent, offset)));

        assert!(CLASS.is_sorted());
        assert!(CLASS.iter().all(|class| usize::from(*class) < CLASSES));

        assert!(expected.eq((0..MOST).map(at)));
    }

    #[test]
    fn a_long_run_has_few_pages_to_come() {
        let held = |pages: u32| {
            let (extent, _) = at(pages - 1);
            u32::from(START[extent]) + (1 << CLASS[extent])
        };

        assert!((32..=MOST).all(|pages| 3 * held(pages) <= 5 * pages));
    }

    #[test]
    fn a_run_has_the_pages_that_it_was_given() {
        let mut arena = Arena::new();
        let mut runs = [Pages::default(), Pages::default()];
        let given: Vec<[u32; 2]> =
            (0..MOST).map(|at| [runs[0].push(&mut arena, 0, at), runs[1].push(&mut arena, 1, at)]).collect();

        for (run, pages) in runs.iter().enumerate() {
            assert!((0..MOST).all(|number| pages.get(number) == given[number as usize][run]));
            let stretches = pages.stretches(3, MOST - 5);
            let listed: Vec<u32> = stretches.flat_map(|one| one.page..one.page + one.pages).collect();
            assert!(listed.iter().eq(given[3..MOST as usize - 5].iter().map(|both| &both[run])));
        }
        let held = arena.bytes();
        for pages in &runs {
            pages.shorten(MOST, 20, &mut arena);
            pages.shorten(20, 0, &mut arena);
        }
        for pages in &mut runs {
            (0..MOST).for_each(|at| _ = pages.push(&mut arena, 0, at));
        }
        assert_eq!(arena.bytes(), held);
    }
}
