//! Recognises the ordinary events of a stream that another worker may resume, and what each adds to the answer. Pure.
//!
//! An ordinary event is one of which `produced_tokens.Produced` notes ids and text alone: it ends no choice, and has no
//! error, no prompt's ids, no empty delta. Whatever is unusual in any way is not ordinary: Python reads it.

use super::compact::{Compact, unescape};

const FRAME: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";

/// Finish reasons of a choice that is whole: whatever another one says, Python reads it.
const WHOLE: [&str; 3] = ["stop", "length", "tool_calls"];

/// Names of members that have a meaning to Python's readers wherever they are.
const MEANT: [&str; 5] = ["choices", "delta", "error", "finish_reason", "kv_transfer_params"];
const IDS: &str = "token_ids";

/// What an ordinary event adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Token ids of its choices.
    pub ids: Vec<u32>,
    /// Text of its choices.
    pub text: String,
    /// Why a choice ends with it, where one may; "" where none does.
    pub finish: &'static str,
    /// What the first events have told.
    pub beginning: Beginning,
    /// The beginning has its names.
    named: bool,
    place: Place,
}

/// Where in a stream an event is: what may be in it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The prompt's ids.
    First,
    #[default]
    Middle,
    /// A finish reason.
    Last,
}

/// What the first events of an answer tell of it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Beginning {
    pub id: String,
    pub object: String,
    pub created: u64,
    pub model: String,
    /// The prompt's ids, as JSON; empty where they were not told.
    pub prompt: Vec<u8>,
}

/// Which members have been seen, of those that are known.
#[derive(Default)]
struct Seen(u32);

impl Seen {
    /// None for the second of a name.
    fn once(&mut self, name: u32) -> Option<()> {
        let before = self.0;
        self.0 |= 1 << name;
        (before != self.0).then_some(())
    }
}

impl Chunk {
    /// Reads an event with its blank line. `None` where it is not ordinary; then this is to be dropped.
    pub fn read(&mut self, event: &[u8]) -> Option<()> {
        self.place = Place::Middle;
        self.read_choices(event).map(drop)
    }

    /// As `read`, of one of a stream's first events, which may tell the prompt's ids, and no usage.
    pub fn read_first(&mut self, event: &[u8]) -> Option<()> {
        self.place = Place::First;
        self.read_choices(event)?;
        self.named = true;
        Some(())
    }

    /// As `read`, of an event that ends its one choice, which is whole, and is ordinary else.
    pub fn read_last(&mut self, event: &[u8]) -> Option<()> {
        self.place = Place::Last;
        (self.read_choices(event)? == 1 && !self.finish.is_empty()).then_some(())
    }

    /// How many choices the event has: one at least.
    fn read_choices(&mut self, event: &[u8]) -> Option<usize> {
        self.ids.clear();
        self.text.clear();
        self.finish = "";
        let mut json = json(event)?;
        let mut seen = Seen::default();
        let mut choices = 0;
        json.object(|json, name| match name {
            "id" | "object" | "model" => {
                seen.once(u32::from(name.as_bytes()[0] - b'a'))?;
                let text = json.string()?;
                self.name(name, text)
            }
            "created" => {
                seen.once(26)?;
                let created = json.integer()?;
                if self.place == Place::First && !self.named {
                    self.beginning.created = created;
                }
                Some(())
            }
            "choices" => {
                seen.once(27)?;
                choices = json.array(|json| self.choice(json))?;
                Some(())
            }
            "prompt_token_ids" => seen.once(28).and_then(|()| self.prompt(json)),
            "usage" if self.place == Place::First => null(json),
            "error" | "type" => None,
            _ => other(json, name),
        })?;
        (choices > 0 && json.ended()).then_some(choices)
    }

    fn choice(&mut self, json: &mut Compact<'_>) -> Option<()> {
        let (mut seen, mut text, mut said) = (Seen::default(), "", "");
        json.object(|json, name| match name {
            "index" => seen.once(0).and_then(|()| json.integer().map(drop)),
            "text" => seen.once(1).and_then(|()| text_or_null(json, &mut text)),
            "delta" => {
                seen.once(2)?;
                let members = delta(json, &mut said)?;
                (members > 0).then_some(())
            }
            "finish_reason" => seen.once(3).and_then(|()| self.finish_reason(json)),
            "stop_reason" => seen.once(4).and_then(|()| self.stop_reason(json)),
            "message" => seen.once(5).and_then(|()| null(json)),
            "prompt_token_ids" => seen.once(6).and_then(|()| self.prompt(json)),
            IDS => seen.once(7).and_then(|()| self.token_ids(json)),
            _ => other(json, name),
        })?;
        unescape(if text.is_empty() { said } else { text }, &mut self.text)
    }

    fn finish_reason(&mut self, json: &mut Compact<'_>) -> Option<()> {
        if self.place != Place::Last || json.peek() == Some(b'n') {
            return null(json);
        }
        let reason = json.string()?;
        self.finish = WHOLE.into_iter().find(|whole| *whole == reason)?;
        Some(())
    }

    /// The stop string, or the token, that ended the choice.
    fn stop_reason(&self, json: &mut Compact<'_>) -> Option<()> {
        match json.peek()? {
            b'"' if self.place == Place::Last => json.string().map(drop),
            b'0'..=b'9' if self.place == Place::Last => json.integer().map(drop),
            _ => null(json),
        }
    }

    fn name(&mut self, name: &str, raw: &str) -> Option<()> {
        if self.place != Place::First || self.named {
            return Some(());
        }
        let into = match name {
            "id" => &mut self.beginning.id,
            "object" => &mut self.beginning.object,
            _ => &mut self.beginning.model,
        };
        into.clear();
        unescape(raw, into)
    }

    /// Reads the prompt's ids, which are told once.
    fn prompt(&mut self, json: &mut Compact<'_>) -> Option<()> {
        if self.place != Place::First || json.peek() == Some(b'n') {
            return null(json);
        }
        let start = json.at;
        let ids = json.array(|json| json.integer().map(drop))?;
        let list = start..json.at;
        if ids > 0 {
            self.beginning.prompt.is_empty().then_some(())?;
            self.beginning.prompt = json.text(list).into();
        }
        Some(())
    }

    fn token_ids(&mut self, json: &mut Compact<'_>) -> Option<()> {
        if json.word("null") {
            return Some(());
        }
        json.array(|json| {
            self.ids.push(u32::try_from(json.integer()?).ok()?);
            Some(())
        })
        .map(drop)
    }
}

/// Reads the JSON of an event of one line.
pub fn json(event: &[u8]) -> Option<Compact<'_>> {
    Compact::new(event.strip_prefix(FRAME)?.strip_suffix(END)?)
}

/// Reads a delta; how many members it has.
fn delta<'a>(json: &mut Compact<'a>, said: &mut &'a str) -> Option<usize> {
    let mut seen = Seen::default();
    json.object(|json, name| match name {
        "content" => seen.once(0).and_then(|()| text_or_null(json, said)),
        _ => other(json, name),
    })
}

fn text_or_null<'a>(json: &mut Compact<'a>, text: &mut &'a str) -> Option<()> {
    if !json.word("null") {
        *text = json.string()?;
    }
    Some(())
}

fn null(json: &mut Compact<'_>) -> Option<()> {
    json.word("null").then_some(())
}

/// Reads a member that nobody asks for; those with a meaning may be null.
fn other(json: &mut Compact<'_>, name: &str) -> Option<()> {
    if is_meant(name) { null(json) } else { json.skip(|name| !is_meant(name)) }
}

fn is_meant(name: &str) -> bool {
    name.ends_with(IDS) || MEANT.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#""id":"c-1","object":"chat.completion.chunk","created":12,"model":"m""#;

    fn read(event: &str) -> Option<(Vec<u32>, String)> {
        let mut chunk = Chunk::default();
        chunk.read(event.as_bytes())?;
        Some((chunk.ids, chunk.text))
    }

    fn event(members: &str) -> String {
        format!("data: {{{HEAD},{members}}}\n\n")
    }

    #[test]
    fn reads_what_a_chat_says() {
        let members = |ids| {
            event(&format!(
                r#""choices":[{{"index":0,"delta":{{"content":"a\n\u00e9","tool_calls":[{{"function":{{"arguments":"{{\"delta\":{{}}"}}}}]}},"logprobs":{{"content":[{{"bytes":[1]}}]}},"finish_reason":null,"token_ids":{ids}}}],"prompt_token_ids":null,"usage":{{"prompt_tokens":1}}"#
            ))
        };
        assert_eq!(read(&members("[1,22,4294967295]")), Some((vec![1, 22, u32::MAX], "a\né".into())));
        for none in ["[]", "null"] {
            assert_eq!(read(&members(none)), Some((vec![], "a\né".into())));
        }
        assert_eq!(read(&members("[1,-2]")), None);
        assert_eq!(read(&members("[1.0]")), None);
        assert_eq!(read(&members("[4294967296]")), None);
    }

    #[test]
    fn reads_what_several_choices_say() {
        let several = event(
            r#""choices":[{"index":0,"text":"a","token_ids":[1]},{"index":1,"text":"","delta":{"content":"b"},"token_ids":[2]}]"#,
        );
        assert_eq!(read(&several), Some((vec![1, 2], "ab".into())));
    }

    #[test]
    fn reads_what_the_first_events_tell() {
        let mut chunk = Chunk::default();
        let role = event(
            r#""choices":[{"index":0,"delta":{"role":"assistant","content":""},"prompt_token_ids":[]}],"prompt_token_ids":[5,6],"usage":null"#,
        );
        assert_eq!(chunk.read_first(role.as_bytes()), Some(()));
        let later = event(r#""choices":[{"delta":{"content":"a"},"token_ids":[7]}]"#).replace("c-1", "c-2");
        assert_eq!(chunk.read_first(later.as_bytes()), Some(()));
        let told = Beginning {
            id: "c-1".into(),
            object: "chat.completion.chunk".into(),
            created: 12,
            model: "m".into(),
            prompt: b"[5,6]".to_vec(),
        };
        assert_eq!((chunk.ids.as_slice(), chunk.text.as_str(), &chunk.beginning), ([7].as_slice(), "a", &told));
        assert_eq!(chunk.read(event(r#""choices":[{"text":"b"}]"#).as_bytes()), Some(()));
        assert_eq!(chunk.beginning, told);
        for members in [
            r#""choices":[{"text":"a"}],"usage":{"prompt_tokens":1}"#,
            r#""choices":[{"text":"a","finish_reason":"stop"}]"#,
            r#""choices":[{"text":"a"}],"prompt_token_ids":[8]"#,
            r#""choices":[{"text":"a"}],"prompt_token_ids":[1.5]"#,
            r#""choices":[{"text":"a"}],"prompt_token_ids":[[1]]"#,
            r#""choices":[{"text":"a"}],"error":{}"#,
        ] {
            assert_eq!(chunk.read_first(event(members).as_bytes()), None, "{members}");
        }
    }

    #[test]
    fn reads_the_last_event_of_a_whole_choice() {
        let mut chunk = Chunk::default();
        let mut last = |choices: &str| chunk.read_last(event(&format!(r#""choices":[{choices}]"#)).as_bytes());
        for reason in ["stop", "length", "tool_calls"] {
            for stop in ["null", r#""\n""#, "7"] {
                let choice =
                    format!(r#"{{"delta":{{"content":"a"}},"finish_reason":"{reason}","stop_reason":{stop}}}"#);
                assert_eq!(last(&choice), Some(()), "{choice}");
            }
        }
        for choices in [
            r#"{"delta":{"content":"a"},"finish_reason":null}"#,
            r#"{"delta":{"content":"a"}}"#,
            r#"{"delta":{},"finish_reason":"stop"}"#,
            r#"{"delta":{"content":"a"},"finish_reason":"cache_threshold"}"#,
            r#"{"delta":{"content":"a"},"finish_reason":"abort"}"#,
            r#"{"delta":{"content":"a"},"finish_reason":"stop","stop_reason":-1}"#,
            r#"{"delta":{"content":"a"},"finish_reason":"stop","finish_reason":"stop"}"#,
            r#"{"delta":{"content":"a"},"finish_reason":"stop"},{"delta":{"content":"b"},"finish_reason":null}"#,
            r#"{"delta":{"content":"a"},"finish_reason":"stop"},{"delta":{"content":"b"},"finish_reason":"stop"}"#,
        ] {
            assert_eq!(last(choices), None, "{choices}");
        }
    }

    #[test]
    fn leaves_all_else_to_python() {
        let ordinary = r#""choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]"#;
        assert!(read(&event(ordinary)).is_some());
        for members in [
            r#""choices":[]"#,
            r#""choices":[],"usage":{"prompt_tokens":1}"#,
            r#""choices":[{"index":0,"delta":{},"finish_reason":null}]"#,
            r#""choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]"#,
            r#""choices":[{"index":0,"delta":{"content":1}}]"#,
            r#""choices":[{"index":0,"delta":{"content":"a","content":"b"}}]"#,
            r#""choices":[{"index":0,"delta":{"content":"a"},"prompt_token_ids":[1]}]"#,
            r#""choices":[{"index":0,"delta":{"content":"a","x":{"delta":{}}}}]"#,
            r#""choices":[{"index":0,"delta":{"content":"a","x":{"x_token_ids":[1]}}}]"#,
            r#""choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"finish_reason":"x"}}]"#,
            r#""choices":[{"index":0,"message":{"content":"a"}}]"#,
            r#""choices":[{"index":0,"delta":{"content":"\ud800"}}]"#,
            r#""choices":[1]"#,
            r#""usage":null"#,
        ] {
            assert_eq!(read(&event(members)), None, "{members}");
        }
        for member in [
            r#""error":{}"#,
            r#""type":"error""#,
            r#""prompt_token_ids":[1]"#,
            r#""kv_transfer_params":{}"#,
            r#""id":"x""#,
            r#""my_token_ids":[1]"#,
            ordinary,
        ] {
            assert_eq!(read(&event(&format!("{ordinary},{member}"))), None, "{member}");
        }
        let sound = event(ordinary);
        for other in [
            sound.replace("\n\n", "\r\n\r\n"),
            sound.replace("data: ", "data:"),
            sound.replace("data: ", "event: x\ndata: "),
            sound.replace("\n\n", " \n\n"),
            sound.replace(":{", ": {"),
            sound.replace("\n\n", "\n:\n\n"),
            "data: [DONE]\n\n".into(),
            ": a comment\n\n".into(),
            "\n\n".into(),
            String::new(),
        ] {
            assert_eq!(read(&other), None, "{other}");
        }
        for end in 0..sound.len() {
            assert_eq!(read(&sound[..end]), None);
        }
    }
}
