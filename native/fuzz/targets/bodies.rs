//! JSON bodies against a reader that takes one number at a time.

use cachefleet_native::json::{JsonError, tokens};

pub fn any(data: &[u8]) {
    if let Ok(numbers) = tokens(data, b"prompt") {
        assert!(numbers.len() <= data.len());
    }
}

/// Bytes as an array's inside: mostly such as may be there.
pub fn array(data: &[u8]) {
    let inside: Vec<u8> =
        data.iter().map(|byte| *b"0123456789,,,  \n\t0123456789-.e]".get(usize::from(*byte)).unwrap_or(byte)).collect();
    if inside.iter().any(|byte| b"\"[]{}".contains(byte)) {
        return any(&inside);
    }
    let body = [br#"{"other":[1,2],"prompt":["#, &inside[..], b"]}"].concat();
    assert_eq!(tokens(&body, b"prompt"), simply(&inside).ok_or(JsonError::Tokens));
}

fn simply(inside: &[u8]) -> Option<Vec<u32>> {
    let blank = |byte: &u8| b" \n\r\t".contains(byte);
    if inside.iter().all(blank) {
        return Some(Vec::new());
    }
    let number = |part: &[u8]| {
        let text = std::str::from_utf8(part).ok()?.trim_matches([' ', '\n', '\r', '\t']);
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let sound = digits && (text.len() == 1 || !text.starts_with('0'));
        if sound { text.parse().ok() } else { None }
    };
    inside.split(|byte| *byte == b',').map(number).collect()
}
