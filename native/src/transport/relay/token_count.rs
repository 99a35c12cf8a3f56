//! Counts the tokens of a stream by its events, for answers that end before their usage comes. Pure.
//!
//! A lower bound in any case: tokens that the engine produced and did not send any more are not in it.

use super::event::Part;
use super::token_ids::TokenIds;

/// Beginnings of what a choice says, in compact JSON; a quote within text is escaped, so that no text matches.
static TEXTS: [Part; 4] = [
    Part::new(b"\"content\":\""),
    Part::new(b"\"text\":\""),
    Part::new(b"\"reasoning\":\""),
    Part::new(b"\"arguments\":\""),
];

/// Tokens of one stream so far.
#[derive(Debug, Default)]
pub struct TokenCount {
    /// Tokens of all choices.
    pub produced: u64,
    /// Ids of all prompts.
    pub prompts: u64,
    /// Ids of the longest prompt.
    pub longest_prompt: u64,
    /// So many choices begin with their prompt; those that have not begun.
    echoes: u64,
    echoed: bool,
}

impl TokenCount {
    /// `echoes`: so many choices begin with their prompt, which may be among the ids: only text is counted.
    #[must_use]
    pub fn new(echoes: u64) -> Self {
        Self { echoes, echoed: echoes > 0, ..Self::default() }
    }

    /// Adds an event's JSON, which has these ids.
    pub fn note(&mut self, data: &[u8], ids: Option<&TokenIds>) {
        if self.echoed {
            if says_something(data) {
                let is_echo = self.echoes > 0;
                self.echoes -= u64::from(is_echo);
                self.produced += u64::from(!is_echo);
            }
        } else if ids.is_none() {
            self.produced += u64::from(says_something(data));
        } else if let Some((produced, prompt)) = ids.and_then(|ids| ids.counts) {
            self.produced += produced;
            self.prompts += prompt;
            self.longest_prompt = self.longest_prompt.max(prompt);
        }
    }
}

/// Whether an event has text: at least one token was produced then.
fn says_something(data: &[u8]) -> bool {
    TEXTS.iter().any(|name| name.find(data).is_some_and(|at| data.get(at + name.len()) != Some(&b'"')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(echoes: u64, events: &[&str]) -> (u64, u64, u64) {
        let mut count = TokenCount::new(echoes);
        for event in events {
            count.note(event.as_bytes(), TokenIds::read(event.as_bytes()).as_ref());
        }
        (count.produced, count.prompts, count.longest_prompt)
    }

    #[test]
    fn tokens_are_counted_by_ids_or_by_events_with_text() {
        let (ids, text) = (r#"{"choices":[{"text":"a","token_ids":[1,2]}]}"#, r#"{"choices":[{"text":"a"}]}"#);
        let prompt = |ids| format!(r#"{{"choices":[{{"text":"","token_ids":[],"prompt_token_ids":{ids}}}]}}"#);
        assert_eq!(counted(0, &[ids, text, r#"{"choices":[{"text":""}]}"#]), (3, 0, 0));
        assert_eq!(counted(0, &[&prompt("[5,6]"), &prompt("[7]"), ids]), (2, 3, 2));
        assert_eq!(counted(0, &[r#"{"choices":[{"token_ids":[1]}],"kv_transfer_params":{}}"#]), (0, 0, 0));
        for name in ["content", "text", "reasoning", "arguments"] {
            assert_eq!(counted(0, &[&format!(r#"{{"{name}":"x"}}"#)]).0, 1);
        }
    }

    #[test]
    fn a_prompt_that_a_choice_begins_with_is_not_counted() {
        let text = r#"{"choices":[{"text":"a","token_ids":[1,2]}]}"#;
        assert_eq!(counted(2, &[text, r#"{"choices":[{"text":""}]}"#, text, text, text]), (2, 0, 0));
    }
}
