//! Who holds the blocks of a run: stretches of equal holder sets, end to end.

use super::sets::SetId;

/// Blocks up to `end`, from the end of the span before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub end: u32,
    pub set: SetId,
}

/// A stretch with its bounds.
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
    let first = spans.partition_point(|span| span.end <= from);
    spans[first..].iter().scan(from, move |start, span| {
        let piece = Piece { start: *start, end: span.end.min(to), set: span.set };
        *start = piece.end;
        (piece.start < to).then_some(piece)
    })
}

/// Adds a stretch at the end.
pub fn push(spans: &mut Vec<Span>, end: u32, set: SetId) {
    match spans.last_mut() {
        Some(last) if last.set == set => last.end = end,
        _ => spans.push(Span { end, set }),
    }
}

/// Gives each piece of `from..to` the set that `change` answers.
pub fn rewrite(spans: &mut Vec<Span>, from: u32, to: u32, mut change: impl FnMut(Piece) -> SetId) {
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
