//! Reads the head of an answer. Pure.

use memchr::memmem;

/// Bytes of a head, at most.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Fields of a head, at most.
pub const MAX_HEAD_FIELDS: usize = 256;

/// No head of an answer, or one beyond its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// How the end of a body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    /// It ends with the connection.
    Close,
}

/// Status and fields of an answer, names in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub framing: Framing,
    /// The connection may be used again once the answer has ended.
    pub reusable: bool,
}

impl Head {
    /// Whether it is the head of a stream of events.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.status == 200 && self.is(b"text/event-stream")
    }

    /// Whether its body is of this type.
    #[must_use]
    pub fn is(&self, media_type: &[u8]) -> bool {
        let kind = self.values("content-type").next().unwrap_or_default();
        kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().eq_ignore_ascii_case(media_type)
    }

    /// The values of a field, by its name in lower case.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.fields.iter().filter(move |field| field.0 == name.as_bytes()).map(|field| field.1.as_slice())
    }

    /// Words of a field that is a list, in lower case.
    fn words(&self, name: &str) -> Vec<Vec<u8>> {
        let parts = self.values(name).flat_map(|value| value.split(|byte| *byte == b','));
        parts.map(|part| part.trim_ascii().to_ascii_lowercase()).filter(|word| !word.is_empty()).collect()
    }
}

/// Where the head at the beginning of `data` ends, of which `scanned` bytes hold no end; None where it does not.
#[must_use]
pub fn head_end(data: &[u8], scanned: usize) -> Option<usize> {
    let from = scanned.min(data.len());
    memmem::find(&data[from..], b"\r\n\r\n").map(|at| from + at + 4)
}

/// Reads a head that is all there, its blank line included.
///
/// # Errors
/// It is none.
pub fn read_head(data: &[u8]) -> Result<Head, Malformed> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_HEAD_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let read = response.parse(data).map_err(|_| Malformed)?;
    if read != httparse::Status::Complete(data.len()) {
        return Err(Malformed);
    }
    let fields = response.headers.iter().map(|field| (field.name.to_ascii_lowercase().into(), field.value.to_vec()));
    let status = response.code.ok_or(Malformed)?;
    let mut head = Head { status, fields: fields.collect(), framing: Framing::Length(0), reusable: false };
    head.framing = framing(&head)?;
    head.reusable = response.version == Some(1) && is_reusable(&head);
    Ok(head)
}

fn framing(head: &Head) -> Result<Framing, Malformed> {
    let codings = head.words("transfer-encoding");
    let length = content_length(head)?;
    if head.status < 200 || matches!(head.status, 204 | 304) {
        return Ok(Framing::Length(0));
    }
    match codings.as_slice() {
        [] => Ok(length.map_or(Framing::Close, Framing::Length)),
        [only] if only == b"chunked" => Ok(Framing::Chunked),
        _ => Err(Malformed), // a coding that nobody was asked for
    }
}

fn content_length(head: &Head) -> Result<Option<u64>, Malformed> {
    let mut lengths = head.words("content-length");
    lengths.dedup();
    match lengths.as_slice() {
        [] => Ok(None),
        [only] if only.len() <= 18 && only.iter().all(u8::is_ascii_digit) => {
            Ok(Some(only.iter().fold(0, |sum, digit| 10 * sum + u64::from(digit - b'0'))))
        }
        _ => Err(Malformed),
    }
}

fn is_reusable(head: &Head) -> bool {
    let two_lengths = head.framing == Framing::Chunked && head.values("content-length").next().is_some();
    head.framing != Framing::Close && !two_lengths && !head.words("connection").iter().any(|word| word == b"close")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(fields: &str) -> Result<(Framing, bool), Malformed> {
        let head = read_head(format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes())?;
        Ok((head.framing, head.reusable))
    }

    #[test]
    fn finds_the_end_wherever_it_is_looked_for_from() {
        let data = b"HTTP/1.1 200 OK\r\na: b\r\n\r\nrest";
        let end = head_end(data, 0).unwrap();
        assert_eq!(&data[end..], b"rest");
        for scanned in 0..=end - 4 {
            assert_eq!(head_end(data, scanned), Some(end));
        }
        assert_eq!(head_end(&data[..end - 1], 0), None);
    }

    #[test]
    fn reads_status_and_fields() {
        let head = read_head(b"HTTP/1.1 404 Not Found\r\nA-B: \xff c \r\na-b:\r\n\r\n").unwrap();
        assert_eq!(head.status, 404);
        assert_eq!(head.fields, [(b"a-b".to_vec(), b"\xff c".to_vec()), (b"a-b".to_vec(), Vec::new())]);
        assert_eq!((head.framing, head.reusable), (Framing::Close, false));
    }

    #[test]
    fn knows_how_the_body_ends() {
        assert_eq!(framed("content-length: 12\r\n"), Ok((Framing::Length(12), true)));
        assert_eq!(framed("content-length: 12, 12\r\nContent-Length: 12\r\n"), Ok((Framing::Length(12), true)));
        assert_eq!(framed("content-length: 12\r\nconnection: Keep-Alive, Close\r\n"), Ok((Framing::Length(12), false)));
        assert_eq!(framed("transfer-encoding: Chunked\r\n"), Ok((Framing::Chunked, true)));
        assert_eq!(framed("transfer-encoding: chunked\r\ncontent-length: 1\r\n"), Ok((Framing::Chunked, false)));
        for wrong in ["content-length: 1, 2", "content-length: -1", "content-length: 1 1", "transfer-encoding: gzip"] {
            assert_eq!(framed(&format!("{wrong}\r\n")), Err(Malformed), "{wrong}");
        }
        let empty = read_head(b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n").unwrap();
        assert_eq!((empty.framing, empty.reusable), (Framing::Length(0), true));
        let old = read_head(b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n").unwrap();
        assert_eq!((old.framing, old.reusable), (Framing::Length(5), false));
    }

    #[test]
    fn knows_a_stream_of_events() {
        let of = |status, kind| {
            read_head(format!("HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\n\r\n").as_bytes()).unwrap().is_stream()
        };
        assert!(of(200, "text/event-stream") && of(200, "Text/Event-Stream ; charset=utf-8"));
        assert!(!of(201, "text/event-stream") && !of(200, "application/json") && !of(200, ""));
    }

    #[test]
    fn refuses_what_is_none() {
        for wrong in ["HTTP/1.1 OK\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\n a\r\n\r\n", "HTTP/1.1 200"]
        {
            assert_eq!(read_head(wrong.as_bytes()), Err(Malformed), "{wrong}");
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEAD_FIELDS + 1));
        assert_eq!(read_head(many.as_bytes()), Err(Malformed));
    }
}
