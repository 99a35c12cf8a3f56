//! Holders of a run's blocks: consecutive spans of blocks with the same holder set.

use super::sets::SetId;

/// Blocks up to `end`, from the end of the span before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub end: u32,
    pub set: SetId,
}

/// A part of a span, with its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub start: u32,
    pub end: u32,
    pub set: SetId,
}

impl Piece {
    pub fn len(&self) -> u32 {
        self.end - self.start
    }
}

/// The parts of the spans that lie in `from..to`.
#[inline]
pub fn pieces(spans: &[Span], from: u32, to: u32) -> impl Iterator<Item = Piece> + '_ {
    // Most begin at the first span: a search from the middle would read lines that nobody needs.
    let first = if from == 0 { 0 } else { spans.partition_point(|span| span.end <= from) };
    spans[first..].iter().scan(from, move |start, span| {
        let piece = Piece { start: *start, end: span.end.min(to), set: span.set };
        *start = piece.end;
        (piece.start < to).then_some(piece)
    })
}

/// The spans of one run. Most runs have one, which needs no list.
#[derive(Clone, Debug)]
pub enum Spans {
    /// None where it ends at 0.
    One(Span),
    Many(Box<[Span]>),
}

const _: () = assert!(size_of::<Spans>() == 16);

impl Default for Spans {
    fn default() -> Self {
        Self::One(Span::default())
    }
}

impl Spans {
    #[inline]
    pub fn as_slice(&self) -> &[Span] {
        match self {
            Self::Many(listed) => listed,
            Self::One(only) if only.end == 0 => &[],
            Self::One(only) => std::slice::from_ref(only),
        }
    }

    /// Adds a span at the end.
    pub fn push(&mut self, end: u32, set: SetId) {
        match self {
            Self::One(only) if only.end == 0 || only.set == set => *only = Span { end, set },
            _ => {
                let mut spans = self.take();
                push(&mut spans, end, set);
                self.set(spans);
            }
        }
    }

    /// Removes the last span; returns where the one before ends.
    pub fn pop(&mut self) -> u32 {
        let mut spans = self.take();
        spans.pop();
        let end = spans.last().map_or(0, |span| span.end);
        self.set(spans);
        end
    }

    /// Gives each piece of `from..to` the set that `change` returns.
    pub fn rewrite(&mut self, from: u32, to: u32, mut change: impl FnMut(Piece) -> SetId) {
        if let Self::One(only) = self
            && from == 0
            && to == only.end
        {
            only.set = change(Piece { start: from, end: to, set: only.set });
            return;
        }
        let mut spans = self.take();
        rewrite(&mut spans, from, to, change);
        self.set(spans);
    }

    /// Bytes of the list.
    pub fn bytes(&self) -> usize {
        if let Self::Many(listed) = self { size_of_val(&**listed) } else { 0 }
    }

    fn take(&mut self) -> Vec<Span> {
        match std::mem::take(self) {
            Self::Many(listed) => listed.into_vec(),
            one @ Self::One(_) => one.as_slice().to_vec(),
        }
    }

    fn set(&mut self, spans: Vec<Span>) {
        *self = if let [] | [_] = spans[..] {
            Self::One(spans.first().copied().unwrap_or_default())
        } else {
            Self::Many(spans.into_boxed_slice())
        };
    }
}

/// Adds a span at the end.
fn push(spans: &mut Vec<Span>, end: u32, set: SetId) {
    match spans.last_mut() {
        Some(last) if last.set == set => last.end = end,
        _ => spans.push(Span { end, set }),
    }
}

/// Gives each piece of `from..to` the set that `change` returns.
fn rewrite(spans: &mut Vec<Span>, from: u32, to: u32, mut change: impl FnMut(Piece) -> SetId) {
    let mut first = spans.partition_point(|span| span.end <= from);
    let mut fresh: Vec<Span> = Vec::with_capacity(4);
    let before = if first == 0 { 0 } else { spans[first - 1].end };
    if before < from {
        push(&mut fresh, from, spans[first].set);
    }
    for piece in pieces(spans, from, to) {
        push(&mut fresh, piece.end, change(piece));
    }
    let mut last = spans.partition_point(|span| span.end < to) + 1;
    if to < spans[last - 1].end {
        push(&mut fresh, spans[last - 1].end, spans[last - 1].set);
    }
    // Neighbours that became alike are one.
    if first > 0 && spans[first - 1].set == fresh[0].set {
        first -= 1;
    }
    if let (Some(next), Some(end)) = (spans.get(last), fresh.last_mut())
        && next.set == end.set
    {
        end.end = next.end;
        last += 1;
    }
    spans.splice(first..last, fresh);
}
