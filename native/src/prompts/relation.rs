//! How a prompt differs from an earlier one: the first part that is another, and how much behind it is the same.

use super::shape::{Part, PartKind, Role, Shape};
use super::words::{Class, change};

/// What the first difference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Difference {
    /// All parts of the earlier prompt are its beginning.
    None = 0,
    ToolOrder = 1,
    Tools = 2,
    /// A system text is another, is new, or is gone.
    System = 3,
    /// A time or date in a text.
    Time = 4,
    /// An id or a counter in a text.
    Id = 5,
    Image = 6,
    /// Reasoning that was there is gone.
    Reasoning = 7,
    /// Messages at the beginning are gone, later ones are there.
    Dropped = 8,
    /// A message is another, and later ones are the same.
    Edited = 9,
    /// A message is another, and all that follows is new.
    Branch = 10,
}

/// One prompt against an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Whole blocks that both begin with.
    pub blocks: usize,
    /// Tokens of the earlier prompt, and bytes of its text.
    pub tokens: u32,
    pub bytes: u64,
    /// Its salt is another, or a member that changes what the template makes of the same parts.
    pub salt: bool,
    pub parameters: bool,
    pub difference: Difference,
    /// Of the part that is another; of the last one that is the same where none is.
    pub kind: Option<PartKind>,
    pub role: Role,
    /// Its message, or its place among the tools.
    pub index: u32,
    /// Bytes of text before the difference.
    pub bytes_before: u64,
    /// Bytes of text from the difference on, and those of them that the earlier prompt has, too.
    pub bytes_after: u64,
    pub bytes_same: u64,
    /// Where tools are others, bytes of text up to the end of what both go on with behind them; else 0.
    pub bytes_reach: u64,
    /// The earlier prompt has reasoning in a message.
    pub reasoned: bool,
}

impl Relation {
    /// Whether the prompt begins with the whole earlier one.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.difference == Difference::None && !self.salt && !self.parameters
    }

    /// Whether the whole earlier prompt was served, but for fewer than `least` tokens: what was not is new.
    ///
    /// Most prompts are such continuations.
    #[must_use]
    pub fn served(&self, prompt: &Ended, least: usize) -> bool {
        let begins = prompt.servable.saturating_sub(prompt.first_seen);
        let common = self.blocks.saturating_mul(prompt.block_size);
        self.goes_on() && common <= begins && prompt.servable.min(self.tokens as usize) < begins + least
    }

    /// All that both have, by which the nearest of relatives is found: text, then whole blocks.
    #[must_use]
    pub fn nearness(&self) -> (u64, usize) {
        (self.bytes_before + self.bytes_same, self.blocks)
    }
}

/// An ended prompt, in tokens: no worker held `first_seen` of them, the last of those that can be served.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub tokens: u32,
    pub first_seen: usize,
    pub servable: usize,
    pub block_size: usize,
}

/// What is told of an earlier prompt besides its parts.
#[derive(Clone, Copy, Debug)]
pub struct Earlier {
    pub tokens: u32,
    /// Of its text.
    pub bytes: u64,
    /// It has reasoning in a message.
    pub reasoned: bool,
}

impl Earlier {
    #[must_use]
    pub fn of(shape: &Shape, tokens: u32) -> Self {
        let reasoned = shape.parts.iter().any(|part| part.kind == PartKind::Reasoning);
        Self { tokens, bytes: shape.text_bytes(), reasoned }
    }

    /// The relation of a prompt that goes on from it: so many parts and whole blocks come first in both.
    #[must_use]
    pub fn gone_on(&self, new: &Shape, parts: usize, blocks: usize) -> Relation {
        let at = new.parts.get(parts).or(new.parts.last());
        Relation {
            blocks,
            tokens: self.tokens,
            bytes: self.bytes,
            salt: false,
            parameters: false,
            difference: Difference::None,
            kind: at.map(|part| part.kind),
            role: at.map_or(Role::Other, |part| part.role),
            index: at.map_or(0, |part| part.index),
            bytes_before: text(&new.parts[..parts]),
            bytes_after: text(&new.parts[parts..]),
            bytes_same: 0,
            bytes_reach: 0,
            reasoned: self.reasoned,
        }
    }
}

/// Compare a prompt with an earlier one, with which it shares so many whole blocks.
#[must_use]
pub fn relation(old: &Shape, earlier: &Earlier, new: &Shape, blocks: usize) -> Relation {
    let first = old.parts.iter().zip(&new.parts).take_while(|(one, other)| one.is(other)).count();
    let mut found = earlier.gone_on(new, first, blocks);
    (found.salt, found.parameters) = (old.salt != new.salt, old.parameters != new.parameters);
    if first < old.parts.len() && first < new.parts.len() {
        (found.difference, found.bytes_same) = parts(old, new, first);
        if matches!(found.difference, Difference::Tools | Difference::ToolOrder) {
            found.bytes_reach = reach(old, new);
        }
    }
    found
}

/// Bytes of a prompt up to the end of what it has in common with an earlier one behind the tools of both; 0 where that
/// is nothing, or where fewer than half of the tools are the same: they are of another agent.
fn reach(old: &Shape, new: &Shape) -> u64 {
    let tools = |shape: &Shape| shape.parts.iter().take_while(|part| part.kind == PartKind::Tool).count();
    let ((was, old), (is, new)) = (old.parts.split_at(tools(old)), new.parts.split_at(tools(new)));
    let held = is.iter().filter(|tool| was.iter().any(|other| other.is(tool))).map(|tool| u64::from(tool.bytes));
    let behind = following(old, new);
    if behind > 0 && 2 * held.sum::<u64>() >= text(was).max(text(is)) { text(is) + behind } else { 0 }
}

/// Bytes of what a prompt has in common with an earlier one from which it goes on; None where it does not.
#[must_use]
pub fn begun(old: &Shape, new: &Shape) -> Option<u64> {
    let whole = old.parts.len().min(new.parts.len());
    let same = old.salt == new.salt && old.parameters == new.parameters;
    let goes_on = same && old.parts.iter().zip(&new.parts).all(|(one, other)| one.is(other));
    goes_on.then(|| text(&new.parts[..whole]))
}

/// Bytes of parts.
fn text(parts: &[Part]) -> u64 {
    parts.iter().map(|part| u64::from(part.bytes)).sum()
}

/// The first difference of parts, and the bytes behind it that both have.
fn parts(old: &Shape, new: &Shape, first: usize) -> (Difference, u64) {
    let (was, is) = (&old.parts[first], &new.parts[first]);
    if was.kind == PartKind::Tool || is.kind == PartKind::Tool {
        return tools(old, new, first);
    }
    if was.kind == PartKind::Media || is.kind == PartKind::Media {
        return (Difference::Image, aligned(&old.parts[first..], &new.parts[first..]));
    }
    if was.kind == PartKind::Reasoning && is.kind != PartKind::Reasoning {
        let spoken = |part: &&Part| part.kind != PartKind::Reasoning;
        let said: Vec<_> = old.parts[first..].iter().filter(spoken).copied().collect();
        return (Difference::Reasoning, aligned(&said, &new.parts[first..]));
    }
    if was.kind == PartKind::System || is.kind == PartKind::System {
        return system(old, new, first);
    }
    message(old, new, first)
}

fn tools(old: &Shape, new: &Shape, first: usize) -> (Difference, u64) {
    let of = |shape: &Shape| shape.parts.iter().filter(|part| part.kind == PartKind::Tool).copied().collect::<Vec<_>>();
    let (was, is) = (of(old), of(new));
    let held = is.iter().skip(first).filter(|tool| was[first.min(was.len())..].iter().any(|other| other.is(tool)));
    let same: u64 = held.map(|tool| u64::from(tool.bytes)).sum();
    let moved = first < was.len() && first < is.len() && was[first].name != is[first].name;
    let ordered = moved && was.len() == is.len() && is.iter().all(|tool| was.iter().any(|other| other.is(tool)));
    let behind = following(&old.parts[was.len().max(first)..], &new.parts[is.len().max(first)..]);
    if ordered {
        return (Difference::ToolOrder, same + behind);
    }
    match (was.get(first), is.get(first)) {
        (Some(was), Some(is)) if was.name == is.name => {
            let (kind, after) = changed((old, was), (new, is));
            (kind.unwrap_or(Difference::Tools), same + behind + after)
        }
        _ => (Difference::Tools, same + behind),
    }
}

fn system(old: &Shape, new: &Shape, first: usize) -> (Difference, u64) {
    let (was, is) = (&old.parts[first], &new.parts[first]);
    if was.kind != is.kind {
        return (Difference::System, aligned(&old.parts[first..], &new.parts[first..]));
    }
    let (kind, same) = changed((old, was), (new, is));
    (kind.unwrap_or(Difference::System), same + following(&old.parts[first + 1..], &new.parts[first + 1..]))
}

fn message(old: &Shape, new: &Shape, first: usize) -> (Difference, u64) {
    let (was, is) = (&old.parts[first], &new.parts[first]);
    let behind = aligned(&old.parts[first..], &new.parts[first..]);
    let later = |parts: &[Part], part: &Part| parts[first + 1..].iter().any(|other| other.is(part));
    if later(&old.parts, is) {
        return (Difference::Dropped, behind);
    }
    if was.kind == is.kind && was.role == is.role {
        let (kind, same) = changed((old, was), (new, is));
        let after = following(&old.parts[first + 1..], &new.parts[first + 1..]);
        if let Some(kind) = kind {
            return (kind, same + after);
        }
        if mostly(after, &old.parts[first + 1..]) {
            return (Difference::Edited, same + after);
        }
    }
    (if mostly(behind, &old.parts[first..]) { Difference::Edited } else { Difference::Branch }, behind)
}

/// Whether so many bytes are most of what the earlier prompt went on with: another conversation may have some, too.
fn mostly(same: u64, old: &[Part]) -> bool {
    same > 0 && 2 * same >= text(old)
}

/// A time or an id as what two texts of one kind differ in, and the bytes behind it that both have.
fn changed((old, was): (&Shape, &Part), (new, is): (&Shape, &Part)) -> (Option<Difference>, u64) {
    let found = change(&old.details(was).words, &new.details(is).words);
    let same = u64::from(is.bytes) * found.same_after as u64 / 1000;
    let kind = match found.kind {
        Class::Time => Some(Difference::Time),
        Class::Id | Class::Number => Some(Difference::Id),
        Class::Text => None,
    };
    (kind, same)
}

/// Bytes of the parts that both begin with.
fn following(old: &[Part], new: &[Part]) -> u64 {
    let same = old.iter().zip(new).take_while(|(one, other)| one.is(other));
    same.map(|(_, part)| u64::from(part.bytes)).sum()
}

/// Bytes of the parts that both go on with from the first part of `new` on that `old` has, too.
fn aligned(old: &[Part], new: &[Part]) -> u64 {
    let first = new.iter().enumerate().find_map(|(at, part)| Some((old.iter().position(|other| other.is(part))?, at)));
    first.map_or(0, |(was, is)| following(&old[was..], &new[is..]))
}

#[cfg(test)]
mod tests {
    use super::super::PromptMemory;
    use super::*;
    use crate::ask::Members;
    use bytes::Bytes;

    fn shape(body: &str) -> Shape {
        let members = Members::parse(&Bytes::copy_from_slice(body.as_bytes())).unwrap();
        PromptMemory::new(5, 1).shape(&members, b"").unwrap()
    }

    fn related(old: &Shape, new: &Shape) -> Relation {
        relation(old, &Earlier::of(old, 9), new, 0)
    }

    fn differ(old: &str, new: &str) -> Difference {
        related(&shape(old), &shape(new)).difference
    }

    fn chat(messages: &str) -> String {
        format!("{{\"messages\": [{messages}]}}")
    }

    const RULES: &str = r#"{"role": "system", "content": "Be kind to all who ask."}"#;
    const ASKED: &str = r#"{"role": "user", "content": "When does the train to the sea go?"}"#;
    const SAID: &str = r#"{"role": "assistant", "content": "It goes at noon, as far as I know."}"#;
    const MORE: &str = r#"{"role": "user", "content": "And back again?"}"#;

    #[test]
    fn the_first_difference_has_a_kind() {
        let whole = chat(&[RULES, ASKED, SAID, MORE].join(","));
        let thought = SAID.replace("\"content\"", "\"reasoning_content\": \"A timetable.\", \"content\"");
        let image = r#"{"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "a"}}]}"#;
        for (old, new, expected) in [
            (chat(&[RULES, ASKED].join(",")), whole.clone(), Difference::None),
            (whole.replace("kind", "brief"), whole.clone(), Difference::System),
            (chat(&[ASKED, SAID].join(",")), chat(&[RULES, ASKED, SAID].join(",")), Difference::System),
            (whole.replace("the sea", "a town"), whole.clone(), Difference::Edited),
            (whole.clone(), chat(&[RULES, SAID, MORE].join(",")), Difference::Dropped),
            (chat(&[RULES, ASKED, &thought, MORE].join(",")), whole.clone(), Difference::Reasoning),
            (whole.clone(), chat(&[RULES, MORE].join(",")).replace("again", "for once"), Difference::Branch),
            (chat(&[RULES, &image.replace('a', "b")].join(",")), chat(&[RULES, image].join(",")), Difference::Image),
        ] {
            assert_eq!(differ(&old, &new), expected, "{old} {new}");
        }
    }

    #[test]
    fn tools_in_another_order_are_told_from_other_tools() {
        let tool = |name: &str, text: &str| {
            format!(r#"{{"type": "function", "function": {{"name": "{name}", "description": "{text}"}}}}"#)
        };
        let body = |tools: &[String]| format!(r#"{{"tools": [{}], "messages": [{ASKED}]}}"#, tools.join(","));
        let (one, two) = (tool("one", "Does a thing."), tool("two", "Does another."));
        let both = body(&[one.clone(), two.clone()]);
        assert_eq!(differ(&both, &body(&[two.clone(), one.clone()])), Difference::ToolOrder);
        assert_eq!(differ(&both, &body(&[one.clone(), tool("two", "Does more.")])), Difference::Tools);
        assert_eq!(differ(&both, &body(std::slice::from_ref(&one))), Difference::Tools);
        assert_eq!(differ(&body(std::slice::from_ref(&one)), &both), Difference::Tools);
        let dated = |day: &str| body(&[tool("one", &format!("As of {day} it does a thing.")), two.clone()]);
        assert_eq!(differ(&dated("2026-11-27"), &dated("2026-11-28")), Difference::Time);
    }

    #[test]
    fn what_both_have_behind_the_difference_is_measured() {
        let (old, new) = (shape(&chat(&[RULES, ASKED, SAID].join(","))), shape(&chat(&[ASKED, SAID, MORE].join(","))));
        let found = related(&old, &new);
        assert_eq!((found.bytes_before, found.bytes_after), (0, new.text_bytes()));
        assert_eq!(found.bytes_same, u64::from(new.parts[0].bytes + new.parts[1].bytes));
    }
}
