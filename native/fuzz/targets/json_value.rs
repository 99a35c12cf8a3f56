//! A slow reader of JSON, which builds all that it reads.

#[derive(Debug)]
pub enum Value {
    Word(String),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

impl Value {
    /// A member; the first of its name.
    pub fn get(&self, wanted: &str) -> Option<&Value> {
        let Value::Object(members) = self else { return None };
        members.iter().find(|(name, _)| name == wanted).map(|(_, value)| value)
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::Word(word) if word == "null")
    }

    pub fn text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    pub fn number(&self) -> Option<u32> {
        if let Value::Word(word) = self { word.parse().ok() } else { None }
    }
}

/// None where it is no JSON.
pub fn parse(text: &str) -> Option<Value> {
    let mut reader = Reader(text.trim_matches(BLANK));
    let value = reader.value()?;
    reader.0.is_empty().then_some(value)
}

const BLANK: [char; 4] = [' ', '\n', '\r', '\t'];

struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn take(&mut self, wanted: char) -> bool {
        self.0 = self.0.trim_start_matches(BLANK);
        let rest = self.0.strip_prefix(wanted);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn value(&mut self) -> Option<Value> {
        if self.take('"') {
            return self.text().map(Value::Text);
        }
        if self.take('[') {
            return self.items(']', Self::value).map(Value::List);
        }
        if self.take('{') {
            return self.items('}', Self::member).map(Value::Object);
        }
        let end = self.0.find(|letter: char| !letter.is_ascii_alphanumeric() && !"+-.".contains(letter));
        let (word, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        let known = ["null", "true", "false"].contains(&word) || word.parse::<f64>().is_ok();
        known.then(|| Value::Word(word.to_owned()))
    }

    fn member(&mut self) -> Option<(String, Value)> {
        let name = if self.take('"') { self.text()? } else { return None };
        if self.take(':') { Some((name, self.value()?)) } else { None }
    }

    fn items<T>(&mut self, end: char, item: fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        while items.is_empty() || self.take(',') {
            if items.is_empty() && self.take(end) {
                return Some(items);
            }
            items.push(item(self)?);
        }
        self.take(end).then_some(items)
    }

    fn text(&mut self) -> Option<String> {
        let mut units: Vec<u16> = Vec::new();
        loop {
            let letter = self.0.chars().next()?;
            self.0 = &self.0[letter.len_utf8()..];
            match letter {
                '"' => return String::from_utf16(&units).ok(),
                '\\' => units.push(self.escape()?),
                _ => units.extend_from_slice(letter.encode_utf16(&mut [0; 2])),
            }
        }
    }

    fn escape(&mut self) -> Option<u16> {
        let letter = self.0.chars().next()?;
        self.0 = &self.0[letter.len_utf8()..];
        if letter == 'u' {
            let (digits, rest) = self.0.split_at_checked(4)?;
            self.0 = rest;
            return u16::from_str_radix(digits, 16).ok();
        }
        let at = "\"\\/bfnrt".find(letter)?;
        Some(u16::from(b"\"\\/\x08\x0c\n\r\t"[at]))
    }
}
