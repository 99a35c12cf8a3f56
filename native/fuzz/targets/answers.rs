//! Answers of workers, cut anywhere, through the client, against a reader that looks at one line at a time.

use super::tape::Tape;
use bytes::Bytes;
use cachefleet_native::transport::client::{Bounds, Client, Failure, Framing, Opened, Request, open, read_head};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

const MOST_HEAD: usize = 64 * 1024;
const INTERIM: usize = 16;
const ASKED: &[u8] = b"{}";
const SECOND: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond";

thread_local! {
    static EVENT_LOOP: Runtime = Builder::new_current_thread().enable_all().build().expect("an event loop");
}

/// What an answer is, as far as it goes.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    status: u16,
    stream: bool,
    body: Vec<u8>,
    whole: bool,
}

pub fn answer(data: &[u8]) {
    let mut tape = Tape(data);
    let cuts: Vec<usize> = (0..tape.below(4)).map(|_| usize::from(tape.byte())).collect();
    let data = tape.0;
    EVENT_LOOP.with(|event_loop| event_loop.block_on(ask(data, &cuts)));
}

/// One of many addresses of this machine by turns: each has so many ports, and those of closed connections rest.
fn address() -> Ipv4Addr {
    static TURN: AtomicU8 = AtomicU8::new(0);
    Ipv4Addr::new(127, 0, 0, TURN.fetch_add(1, Ordering::Relaxed).clamp(1, 254))
}

async fn ask(data: &[u8], cuts: &[usize]) {
    let (expected, kept) = told(data);
    let listener = TcpListener::bind((address(), 0)).await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let long = Duration::from_secs(20);
    let client = Arc::new(Client::new(Bounds { connect: long, idle: long, keep_alive: long, whole: 1 << 20 }));
    let request = || Request::post(&url, "/x", [], Bytes::from_static(ASKED), None).expect("sound");
    let said = Notify::new();
    let asking = async {
        let first = read(&client, request()).await;
        said.notified().await;
        tokio::task::yield_now().await; // until the event loop has seen what was said
        (first, read(&client, request()).await)
    };
    let ((got, again), ()) = tokio::join!(asking, serve(&listener, data, cuts, kept, &said));
    check(got, expected);
    assert_eq!(again.expect("an answer of its own").body, b"second");
}

fn check(got: Option<Told>, expected: Option<Told>) {
    match (got, expected) {
        // Where it breaks with the first bytes, or later: as these came.
        (Some(got), Some(expected)) if expected.stream && !expected.whole => {
            assert!(!got.whole && got.stream && expected.body.starts_with(&got.body));
        }
        (got, Some(expected)) if expected.whole => assert_eq!(got, Some(expected)),
        (got, _) => assert_eq!(got, None),
    }
}

async fn read(client: &Arc<Client>, request: Request) -> Option<Told> {
    match open(client, request).await {
        Ok(Opened::Whole(one)) => Some(Told { status: one.head.status, stream: false, body: one.body, whole: true }),
        Ok(Opened::Stream(head, mut body, mut answer)) => {
            let mut end = Ok(());
            while end.is_ok() && !answer.ended() {
                end = answer.more(&mut body).await;
            }
            Some(Told { status: head.status, stream: true, body, whole: end.is_ok() })
        }
        Err(failure) => {
            assert!(matches!(failure, Failure::Lost | Failure::Oversized), "{failure:?}");
            None
        }
    }
}

/// Says `data` to the first request, and `SECOND` to the second, on whichever connection that comes.
async fn serve(listener: &TcpListener, data: &[u8], cuts: &[usize], kept: bool, said: &Notify) {
    let mut first = asked(listener).await;
    let mut rest = data;
    for cut in cuts {
        let piece;
        (piece, rest) = rest.split_at((*cut).min(rest.len()));
        let _gone = first.write_all(piece).await;
        tokio::task::yield_now().await;
    }
    let _gone = first.write_all(rest).await;
    said.notify_one();
    let mut second = if kept {
        tokio::select! {
            Ok(()) = request(&mut first) => first,
            other = asked(listener) => other,
        }
    } else {
        drop(first);
        asked(listener).await
    };
    second.write_all(SECOND).await.expect("the client waits");
}

async fn asked(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    request(&mut stream).await.expect("a request");
    stream
}

async fn request(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut sent = Vec::new();
    while !sent.ends_with(ASKED) {
        if stream.read_buf(&mut sent).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// What the client has to make of `data`, which the end of the connection follows, unless the second value is true.
fn told(mut data: &[u8]) -> (Option<Told>, bool) {
    for _ in 0..=INTERIM {
        let Some(end) = (4..=data.len()).find(|end| data[..*end].ends_with(b"\r\n\r\n")) else { break };
        if end > MOST_HEAD {
            break;
        }
        let Ok(head) = read_head(&data[..end]) else { break };
        data = &data[end..];
        if !(200..600).contains(&head.status) {
            if head.status == 101 || !(100..200).contains(&head.status) {
                break;
            }
            continue;
        }
        let (body, whole) = match head.framing {
            Framing::Close => (data.to_vec(), true),
            Framing::Length(length) => {
                let here = usize::try_from(length).unwrap_or(usize::MAX).min(data.len());
                (data[..here].to_vec(), here as u64 == length)
            }
            Framing::Chunked => chunks(data),
        };
        let kept = whole && head.framing != Framing::Close;
        return (Some(Told { status: head.status, stream: head.is_stream(), body, whole }), kept);
    }
    (None, false)
}

/// The data of chunks, as far as they are some, and whether their end is there.
fn chunks(mut data: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Some((line, rest)) = line(data) {
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let Some(size) = size(&line[..digits]).filter(|_| matches!(line.get(digits), None | Some(b';' | b' ' | b'\t')))
        else {
            return (body, false);
        };
        if size == 0 {
            return (body, ended(rest));
        }
        let here = size.min(rest.len());
        body.extend_from_slice(&rest[..here]);
        if !rest[here..].starts_with(b"\r\n") {
            return (body, false);
        }
        data = &rest[here + 2..];
    }
    (body, false)
}

fn size(digits: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(digits).ok().filter(|text| (1..=15).contains(&text.len()))?;
    usize::from_str_radix(text, 16).ok()
}

/// Whether trailers end here.
fn ended(mut data: &[u8]) -> bool {
    while let Some((line, rest)) = line(data) {
        if line.is_empty() {
            return true;
        }
        data = rest;
    }
    false
}

/// A line that is all there, without a control that may not be in it, and what follows.
fn line(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = data.iter().position(|byte| *byte == b'\r' || *byte == b'\n')?;
    data[end..].starts_with(b"\r\n").then(|| (&data[..end], &data[end + 2..]))
}
