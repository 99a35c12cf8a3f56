//! Requests, sound ones and any bytes, through the server's connection on an in-memory pipe.

use super::tape::Tape;
use bytes::{Bytes, BytesMut};
use cachefleet_native::transport::panics::Panics;
use cachefleet_native::transport::server::{
    Answer, AnswerKind, App, Asked, Bounds, Ends, Http, HttpApp, Piece, RequestBody, Server, serve,
};
use hyper::{Method, StatusCode};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

const PIPE: usize = 256 * 1024;
/// Turns of the event loop in which nothing happens, after which nothing will.
const STILL: usize = 60;
const DATE: &[u8] = b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";

thread_local! {
    static EVENT_LOOP: Runtime = Builder::new_current_thread().enable_all().build().expect("an event loop");
}

/// Any bytes: no panic, answers that can be read, and the same ones however the bytes are cut.
pub fn any(data: &[u8]) {
    let mut tape = Tape(data);
    let cuts = cuts(&mut tape);
    // hyper looks at a head that came in pieces only once a blank line is there.
    let sent = [tape.0, b"\r\n\r\n"].concat();
    let whole = answered(&sent, &[]);
    assert_eq!(text(&whole), text(&answered(&sent, &cuts)), "{cuts:?}");
    read_all(&whole);
}

/// Sound requests: each is answered with its own body, in their order.
pub fn sound(data: &[u8]) {
    let mut tape = Tape(data);
    let cuts = cuts(&mut tape);
    let (mut sent, mut bodies) = (Vec::new(), Vec::new());
    for number in 0..=tape.below(5) {
        bodies.push(body(&mut tape));
        request(&mut sent, &mut tape, number, &bodies[usize::from(number)]);
    }
    let told = read_all(&answered(&sent, &cuts));
    assert_eq!(told, bodies);
}

fn cuts(tape: &mut Tape<'_>) -> Vec<usize> {
    (0..tape.below(6)).map(|_| usize::from(tape.byte())).collect()
}

fn body(tape: &mut Tape<'_>) -> Vec<u8> {
    let size = [0, 1, 7, 300, 70_000][usize::from(tape.below(5))] + usize::from(tape.byte());
    let first = tape.byte();
    (0..size).map(|at| first.wrapping_add(at.to_le_bytes()[0])).collect()
}

fn request(sent: &mut Vec<u8>, tape: &mut Tape<'_>, number: u8, body: &[u8]) {
    sent.extend_from_slice(&b"\r\n\r\n"[..[0, 2, 0][usize::from(tape.below(3))]]);
    sent.extend_from_slice(format!("POST /{number} HTTP/1.1\r\nhost: x\r\n").as_bytes());
    for field in 0..tape.below(8) {
        sent.extend_from_slice(format!("x-{field}: {}\r\n", "v".repeat(tape.byte().into())).as_bytes());
    }
    if tape.below(4) == 0 {
        sent.extend_from_slice(b"expect: 100-continue\r\n");
    }
    if tape.below(2) == 0 {
        sent.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
        sent.extend_from_slice(body);
    } else {
        sent.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        chunks(sent, tape, body);
    }
}

fn chunks(sent: &mut Vec<u8>, tape: &mut Tape<'_>, mut body: &[u8]) {
    while !body.is_empty() {
        let least = body.len().div_ceil(20);
        let (chunk, rest) = body.split_at((least + usize::from(tape.byte())).min(body.len()));
        let extension = ["", ";a=b", " ;c=\"d\""][usize::from(tape.below(3))];
        sent.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
        sent.extend_from_slice(chunk);
        sent.extend_from_slice(b"\r\n");
        body = rest;
    }
    sent.extend_from_slice(b"0\r\n");
    for _ in 0..tape.below(3) {
        sent.extend_from_slice(b"x-end: 1\r\n");
    }
    sent.extend_from_slice(b"\r\n");
}

/// What is answered to these bytes.
fn answered(sent: &[u8], cuts: &[usize]) -> Vec<u8> {
    EVENT_LOOP.with(|event_loop| event_loop.block_on(exchange(sent, cuts)))
}

async fn exchange(mut sent: &[u8], cuts: &[usize]) -> Vec<u8> {
    let long = Duration::from_secs(60);
    let bounds = Bounds { head: long, idle: long, send: long, settle: long, linger: long };
    let state = Arc::new(State::default());
    let panics = Arc::new(Panics::default());
    let app: Arc<dyn HttpApp> = Arc::new(Echo(Arc::clone(&state)));
    let http = Arc::new(Http { app: Arc::clone(&app), bounds, websockets: None });
    let server = Server::new(app, Arc::<Http>::clone(&http), Arc::clone(&panics), &[Handle::current()]);
    let (mut client, io) = duplex(PIPE);
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let serving = tokio::spawn(serve(io, Ends::new(nowhere, nowhere), server.count(), http));
    let mut told = Vec::new();
    for cut in cuts {
        let piece;
        (piece, sent) = sent.split_at((*cut).min(sent.len()));
        let _ended = client.write_all(piece).await;
        take_until_still(&mut client, &state, &mut told).await;
    }
    let _ended = client.write_all(sent).await;
    take_until_still(&mut client, &state, &mut told).await;
    serving.abort();
    assert_eq!(panics.count(), 0);
    told
}

/// Adds what is answered, until nothing more comes and the application does nothing.
async fn take_until_still(client: &mut DuplexStream, state: &State, told: &mut Vec<u8>) {
    let mut still = 0;
    while still < STILL {
        let before = (told.len(), state.lock().pieces);
        tokio::select! {
            biased;
            _ = client.read_buf(told) => {}
            () = tokio::task::yield_now() => {}
        }
        still = if before == (told.len(), state.lock().pieces) { still + 1 } else { 0 };
    }
}

/// Answers with the request's body.
struct Echo(Arc<State>);

#[derive(Default)]
struct State(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    pieces: u64,
    wanted: HashMap<u64, oneshot::Sender<Piece>>,
}

impl State {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().expect("nobody panics")
    }

    fn want(&self, wants: &UnboundedSender<u64>) -> Option<oneshot::Receiver<Piece>> {
        let (sender, receiver) = oneshot::channel();
        let mut waiting = self.lock();
        waiting.pieces += 1;
        let number = waiting.pieces;
        waiting.wanted.insert(number, sender);
        wants.send(number).ok().map(|()| receiver)
    }

    async fn body(&self, wants: &UnboundedSender<u64>) -> Option<Bytes> {
        let mut body = BytesMut::new();
        loop {
            match self.want(wants)?.await {
                Ok(Piece::Data { data, last }) => {
                    body.extend_from_slice(&data);
                    if last {
                        return Some(body.freeze());
                    }
                }
                _ => return None,
            }
        }
    }
}

impl HttpApp for Echo {
    fn asked(&self, asked: Asked) {
        let Asked { head, body, answer, event_loop, .. } = asked;
        let state = Arc::clone(&self.0);
        event_loop.spawn(async move {
            let body = match body {
                RequestBody::Whole(body) => Some(body),
                RequestBody::Pieces(wants) => state.body(&wants).await,
            };
            if let Some(body) = body {
                let _gone = answer.send(echo(&head.method, body));
            }
        });
    }
}

impl App for Echo {
    fn piece(&self, number: u64, piece: Piece) {
        let wanted = self.0.lock().wanted.remove(&number).expect("asked for");
        let _gone = wanted.send(piece);
    }

    fn left(&self, _: u64) {}
}

fn echo(method: &Method, body: Bytes) -> Answer {
    match *method {
        Method::HEAD => Answer::text(StatusCode::NO_CONTENT, ""),
        Method::CONNECT => Answer::text(StatusCode::METHOD_NOT_ALLOWED, "no"),
        _ => Answer { body: AnswerKind::Whole(body), ..Answer::text(StatusCode::OK, "") },
    }
}

/// The bodies of all answers with status 200; each answer has to be whole.
fn read_all(mut told: &[u8]) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    while !told.is_empty() {
        let end = told.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head") + 4;
        let (head, rest) = told.split_at(end);
        let head = std::str::from_utf8(head).expect("ASCII");
        assert!(head.starts_with("HTTP/1."), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let body;
        (body, told) = rest.split_at(length.map_or(0, |length| length.parse().expect("a number")));
        if head[8..].starts_with(" 200 ") {
            bodies.push(body.to_vec());
        }
    }
    bodies
}

/// Answers as text, without their dates.
fn text(told: &[u8]) -> String {
    let mut kept = Vec::new();
    let mut rest = told;
    while let Some(at) = rest.windows(6).position(|six| six == b"date: ") {
        kept.extend_from_slice(&rest[..at]);
        rest = &rest[(at + DATE.len()).min(rest.len())..];
    }
    kept.extend_from_slice(rest);
    String::from_utf8_lossy(&kept).into_owned()
}
