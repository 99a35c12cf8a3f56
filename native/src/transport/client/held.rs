//! Requests that a worker renders and holds: their keys, and their answer when it is told to go on.
//!
//! The protocol is `cachefleet_core.engine.held_requests`: frames of a kind, a length (u32, little-endian) and so many
//! bytes; `K` are keys, `H` is the head of the answer, whose body follows.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use super::call::{Answer, Opened, connected, read_heads};
use super::head::{Framing, Head};
use super::request::Request;
use super::{Client, Failure};

const MEDIA_TYPE: &[u8] = b"application/vnd.cachefleet.held";
const GO: &[u8] = b"go";
const KEYS: u8 = b'K';
const HEAD: u8 = b'H';
const FRAME_HEAD_BYTES: usize = 5;
const MAX_FRAME_BYTES: usize = 256 * 1024 * 1024;

/// What comes of a request that is to be held.
pub enum Held {
    /// The document of its prompt's block keys; the worker waits for word.
    Keys(Vec<u8>, Box<Waiting>),
    /// It is answered at once, or not held.
    Answered(Opened),
}

/// A request that a worker holds. To drop it has the worker drop the request.
pub struct Waiting {
    answer: Box<Answer>,
    /// The connection may be used again once the answer has ended.
    reusable: bool,
    /// Decoded, and beyond the frames that were read.
    rest: Vec<u8>,
}

/// Sends a request whose body ends with `go`, and reads its keys.
///
/// # Errors
/// Nothing comes of it.
pub async fn hold(client: &Arc<Client>, request: Request) -> Result<Held, Failure> {
    let (mut connection, request) = connected(client, request).await?;
    connection.send(request.head, request.body);
    let (head, raw) = read_heads(client, &mut connection).await?;
    let reusable = head.reusable;
    let mut answer = Answer::begun(client, request.origin, request.cut, connection, head.framing, raw);
    if !head.is(MEDIA_TYPE) {
        return answer.opened(head).await.map(Held::Answered); // its request never ends: the connection is not used again
    }
    if head.values("content-encoding").next().is_some() {
        return Err(Failure::Undecodable); // whoever compresses it keeps back the keys that are waited for
    }
    let mut rest = Vec::new();
    let (kind, payload) = read_frame(&mut answer, &mut rest).await?;
    let waiting = Box::new(Waiting { answer: Box::new(answer), reusable, rest });
    match kind {
        KEYS => Ok(Held::Keys(payload, waiting)),
        _ => waiting.answered(Some(payload), b"").await.map(Held::Answered),
    }
}

impl Waiting {
    /// Has the worker answer, with late `members` of its body (a JSON object; none where empty), and reads the answer as
    /// that of any request.
    ///
    /// # Errors
    /// No answer comes of it.
    pub async fn go(self: Box<Self>, members: &[u8]) -> Result<Opened, Failure> {
        self.answered(None, members).await
    }

    async fn answered(mut self: Box<Self>, head: Option<Vec<u8>>, members: &[u8]) -> Result<Opened, Failure> {
        self.answer.end_request(second_part(members), self.reusable);
        let payload = match head {
            Some(payload) => payload,
            None => match read_frame(&mut self.answer, &mut self.rest).await? {
                (HEAD, payload) => payload,
                _ => return Err(Failure::Oversized),
            },
        };
        let head = read_head(&payload).ok_or(Failure::Oversized)?;
        self.answer.unread(self.rest);
        self.answer.opened(head).await
    }
}

/// The second chunk of the request's body, and its end.
fn second_part(members: &[u8]) -> Bytes {
    let size = format!("{:x}\r\n", GO.len() + members.len());
    [size.as_bytes(), GO, members, b"\r\n0\r\n\r\n"].concat().into()
}

/// Kind and payload of the next frame; `rest` is what was read before, and then what follows the frame.
async fn read_frame(answer: &mut Answer, rest: &mut Vec<u8>) -> Result<(u8, Vec<u8>), Failure> {
    let end = loop {
        match frame_end(rest)? {
            Some(end) if rest.len() >= end => break end,
            _ if answer.ended() => return Err(Failure::Lost),
            _ => answer.more(rest).await?,
        }
    };
    let (kind, payload) = (rest[0], rest[FRAME_HEAD_BYTES..end].to_vec());
    rest.drain(..end);
    Ok((kind, payload))
}

/// Where the first frame ends; None where its length is not there yet.
fn frame_end(data: &[u8]) -> Result<Option<usize>, Failure> {
    let Some((kind, length)) = data.first_chunk::<FRAME_HEAD_BYTES>().map(|[kind, length @ ..]| (kind, length)) else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if !matches!(*kind, KEYS | HEAD) || length > MAX_FRAME_BYTES {
        return Err(Failure::Oversized);
    }
    Ok(Some(FRAME_HEAD_BYTES + length))
}

/// The head in a frame; None where it is none.
fn read_head(payload: &[u8]) -> Option<Head> {
    let head: Value = serde_json::from_slice(payload).ok()?;
    let status = head.get("status")?.as_u64().filter(|status| (100..600).contains(status))?;
    let fields = head.get("headers")?.as_array()?.iter().map(read_field).collect::<Option<_>>()?;
    Some(Head { status: u16::try_from(status).ok()?, fields, framing: Framing::Close, reusable: false })
}

fn read_field(field: &Value) -> Option<(Vec<u8>, Vec<u8>)> {
    match field.as_array()?.as_slice() {
        [name, value] => Some((latin_1(name.as_str()?)?.to_ascii_lowercase(), latin_1(value.as_str()?)?)),
        _ => None,
    }
}

fn latin_1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|letter| u8::try_from(letter).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::Bounds;
    use super::super::call::Whole;
    use super::*;

    const HELD: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.cachefleet.held\r\ntransfer-encoding: chunked\r\n\r\n";
    const JSON_HEAD: &[u8] = br#"{"status":201,"headers":[["content-type","application/json"]]}"#;
    const STREAM_HEAD: &[u8] = br#"{"status":200,"headers":[["content-type","text/event-stream"]]}"#;

    struct Worker {
        listener: TcpListener,
        client: Arc<Client>,
    }

    impl Worker {
        async fn new() -> Self {
            let [connect, idle, keep_alive] = [Duration::from_secs(5); 3];
            let client = Arc::new(Client::new(Bounds { connect, idle, keep_alive, whole: 1000 }));
            Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), client }
        }

        /// What comes of a request to be held, whose worker writes `pieces` once it has the body.
        async fn holds(&self, pieces: &[&[u8]]) -> (Result<Held, Failure>, TcpStream) {
            let url = format!("http://{}", self.listener.local_addr().unwrap());
            let request = Request::begun(&url, "/x", [], b"{}", None).unwrap();
            let served = async {
                let mut connection = self.listener.accept().await.unwrap().0;
                let request = read_until(&mut connection, b"2\r\n{}\r\n").await;
                assert!(request.starts_with(b"POST /x HTTP/1.1\r\n"));
                for piece in pieces {
                    connection.write_all(piece).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                connection
            };
            tokio::join!(hold(&self.client, request), served)
        }
    }

    async fn read_until(connection: &mut TcpStream, end: &[u8]) -> Vec<u8> {
        let mut read = Vec::new();
        while !read.ends_with(end) {
            assert!(connection.read_buf(&mut read).await.unwrap() > 0);
        }
        read
    }

    fn chunk(data: &[u8]) -> Vec<u8> {
        [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind][..], &u32::try_from(payload.len()).unwrap().to_le_bytes(), payload].concat()
    }

    fn keys(held: Result<Held, Failure>) -> (Vec<u8>, Box<Waiting>) {
        match held {
            Ok(Held::Keys(keys, waiting)) => (keys, waiting),
            Ok(Held::Answered(_)) => panic!("an answer"),
            Err(failure) => panic!("{failure:?}"),
        }
    }

    #[tokio::test]
    async fn keys_come_first_and_the_answer_at_the_word_and_the_connection_is_used_again() {
        let worker = Worker::new().await;
        let (held, mut connection) = worker.holds(&[HELD.as_bytes(), &chunk(&frame(KEYS, b"keys"))]).await;
        let (keys, waiting) = keys(held);
        assert_eq!(keys, b"keys");
        let answers = async {
            read_until(&mut connection, b"11\r\ngo{\"a\":\"bcdefgh\"}\r\n0\r\n\r\n").await;
            let body = chunk(&[frame(HEAD, JSON_HEAD), b"an answer".to_vec()].concat());
            connection.write_all(&[body, b"0\r\n\r\n".to_vec()].concat()).await.unwrap();
        };
        let (opened, ()) = tokio::join!(waiting.go(br#"{"a":"bcdefgh"}"#), answers);
        let Ok(Opened::Whole(Whole { head, body })) = opened else { panic!("not whole") };
        assert_eq!((head.status, body.as_slice()), (201, b"an answer".as_slice()));
        assert_eq!(worker.client.pool.waiting(), 1);
    }

    #[tokio::test]
    async fn frames_may_be_cut_anywhere_and_streams_begin_with_few_events() {
        let worker = Worker::new().await;
        let framed = [HELD.as_bytes().to_vec(), chunk(&frame(KEYS, b"k"))].concat();
        let pieces: Vec<&[u8]> = framed.chunks(7).collect();
        let (opened, mut connection) = worker.holds(&pieces).await;
        let answers = async {
            read_until(&mut connection, b"2\r\ngo\r\n0\r\n\r\n").await;
            let events = [frame(HEAD, STREAM_HEAD), b"data: 1\n\ndata: 2\n\ndata: 3\n\n".to_vec()].concat();
            connection.write_all(&chunk(&events)).await.unwrap();
        };
        let (opened, ()) = tokio::join!(keys(opened).1.go(b""), answers);
        let Ok(Opened::Stream(head, mut first, mut answer)) = opened else { panic!("no stream") };
        assert!(head.is_stream());
        assert_eq!(first, b"data: 1\n\ndata: 2\n\n");
        answer.more(&mut first).await.unwrap();
        assert!(first.ends_with(b"data: 3\n\n") && !answer.ended());
    }

    #[tokio::test]
    async fn a_refusal_needs_no_keys() {
        let worker = Worker::new().await;
        let answer = chunk(&[frame(HEAD, JSON_HEAD), b"no".to_vec()].concat());
        let (held, _connection) = worker.holds(&[HELD.as_bytes(), &answer, b"0\r\n\r\n"]).await;
        let Ok(Held::Answered(Opened::Whole(whole))) = held else { panic!("not answered") };
        assert_eq!((whole.head.status, whole.body.as_slice()), (201, b"no".as_slice()));
    }

    #[tokio::test]
    async fn who_holds_nothing_answers_as_ever_on_a_connection_that_is_not_used_again() {
        let worker = Worker::new().await;
        let answer = b"HTTP/1.1 501 x\r\ncontent-length: 8\r\n\r\nnot_held";
        let (held, mut connection) = worker.holds(&[answer]).await;
        let Ok(Held::Answered(Opened::Whole(whole))) = held else { panic!("not answered") };
        assert_eq!((whole.head.status, whole.body.as_slice()), (501, b"not_held".as_slice()));
        assert_eq!(worker.client.pool.waiting(), 0);
        assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_is_cut() {
        let worker = Worker::new().await;
        let (held, mut connection) = worker.holds(&[HELD.as_bytes(), &chunk(&frame(KEYS, b""))]).await;
        drop(keys(held));
        assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn what_is_no_held_request_is_a_failure() {
        let worker = Worker::new().await;
        let packed = HELD.replace("transfer", "content-encoding: gzip\r\ntransfer");
        for (pieces, failure) in [
            (vec![HELD.as_bytes(), b"5\r\nx\0\0\0\0\r\n"], Failure::Oversized),
            (vec![HELD.as_bytes(), b"5\r\nK\x01\0\0\0\r\n0\r\n\r\n"], Failure::Lost),
            (vec![HELD.as_bytes(), b"7\r\nH\x02\0\0\0{}\r\n"], Failure::Oversized),
            (vec![packed.as_bytes()], Failure::Undecodable),
        ] {
            assert_eq!(worker.holds(&pieces).await.0.err(), Some(failure));
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let head = read_head(br#"{"status":200,"headers":[["Content-Type","text/event-stream"],["a","\u00e9"]]}"#);
        let head = head.unwrap();
        assert!(head.is_stream());
        assert_eq!(head.fields[1], (b"a".to_vec(), b"\xe9".to_vec()));
        for wrong in [
            &b"{}"[..],
            b"[]",
            br#"{"status":99,"headers":[]}"#,
            br#"{"status":200}"#,
            br#"{"status":200,"headers":[["a"]]}"#,
            br#"{"status":200,"headers":[["a","\u20ac"]]}"#,
        ] {
            assert!(read_head(wrong).is_none(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_frame_ends_where_it_says() {
        assert_eq!(frame_end(b"K\x02\0\0"), Ok(None));
        assert_eq!(frame_end(b"K\x02\0\0\0x"), Ok(Some(7)));
        assert_eq!(frame_end(b"H\0\0\0\0"), Ok(Some(5)));
        assert_eq!(frame_end(b"x\0\0\0\0"), Err(Failure::Oversized));
        assert_eq!(frame_end(b"K\0\0\0\xff"), Err(Failure::Oversized));
    }
}
