//! Whole connections over a pipe, before an application that answers at once, later, or never.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::connection::serve;
use super::{Answer, AnswerKind, App, Asked, Bounds, Counted, Ends, Http, HttpApp, Piece, RequestBody, Server};
use crate::transport::panics::Panics;
use crate::transport::reply_body::reply_body;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);
const GET: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// Answers by path: the body itself, after a panic, with a stream that nobody ends, or not at all.
struct Echo {
    left: UnboundedSender<u64>,
    held: Mutex<Vec<Asked>>,
}

impl HttpApp for Echo {
    fn asked(&self, asked: Asked) {
        match asked.head.uri.path() {
            "/panic" => panic!("on purpose"),
            "/held" => self.held.lock().unwrap().push(asked),
            "/abandoned" => {
                let (sender, body) = reply_body();
                sender.push(Bytes::from_static(b"begun")).unwrap();
                answer(asked, AnswerKind::Stream(body));
            }
            _ => {
                let RequestBody::Whole(body) = &asked.body else { return };
                let body = AnswerKind::Whole(body.clone());
                answer(asked, body);
            }
        }
    }
}

impl App for Echo {
    fn piece(&self, _: u64, _: Piece) {}

    fn left(&self, key: u64) {
        let _ = self.left.send(key);
    }
}

fn answer(asked: Asked, body: AnswerKind) {
    let _ = asked.answer.send(Answer { status: StatusCode::OK, headers: HeaderMap::new(), body });
}

struct Side {
    server: Server,
    http: Arc<Http>,
    panics: Arc<Panics>,
    left: UnboundedReceiver<u64>,
}

impl Side {
    fn new(head: Duration) -> Self {
        let (left, hears) = unbounded_channel();
        let app: Arc<dyn HttpApp> = Arc::new(Echo { left, held: Mutex::default() });
        let bounds = Bounds { head, idle: head, send: LONG, settle: SHORT, linger: SHORT };
        let panics = Arc::new(Panics::default());
        let http = Arc::new(Http { app: Arc::clone(&app), bounds, websockets: None });
        let server = Server::new(app, Arc::<Http>::clone(&http), Arc::clone(&panics), &[Handle::current()]);
        Self { server, http, panics, left: hears }
    }

    fn connect(&self) -> DuplexStream {
        let (client, io) = duplex(1 << 20);
        let ends = Ends::new(([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into());
        tokio::spawn(serve(io, ends, self.server.count(), Arc::clone(&self.http)));
        client
    }

    /// All that is answered until the connection ends.
    async fn told(&self, sent: &str) -> String {
        let mut client = self.connect();
        client.write_all(sent.as_bytes()).await.unwrap();
        rest(&mut client).await
    }
}

async fn rest(client: &mut DuplexStream) -> String {
    let mut told = Vec::new();
    let _ = timeout(LONG, client.read_to_end(&mut told)).await.unwrap();
    String::from_utf8(told).unwrap()
}

async fn until(client: &mut DuplexStream, end: &str) -> String {
    let mut told = String::new();
    while !told.ends_with(end) {
        told.push(char::from(timeout(LONG, client.read_u8()).await.unwrap().unwrap()));
    }
    told
}

#[tokio::test]
async fn answers_requests_sent_ahead_in_order() {
    let side = Side::new(LONG);
    let post = |body: &str, more: &str| {
        format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n{more}\r\n{body}", body.len())
    };
    let told = side.told(&(post("first", "") + &post("second", "connection: close\r\n") + GET)).await;
    let bodies: Vec<_> = told.split("\r\n\r\n").map(|part| part.split("HTTP/1.1 200").next().unwrap()).collect();
    assert_eq!(bodies, ["", "first", "second"]);
}

#[tokio::test]
async fn closes_who_sends_no_head_in_time_without_an_answer() {
    let side = Side::new(SHORT);
    for said in ["", "GET / HTTP/1.1\r\nhost"] {
        assert_eq!(side.told(said).await, "");
    }
    let told = side.told(GET).await; // an answer, and nothing asked after it
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
}

#[tokio::test]
async fn refuses_heads_over_their_bounds() {
    let side = Side::new(LONG);
    for head in ["x: v\r\n".repeat(101), format!("x: {}\r\n", "v".repeat(64 * 1024))] {
        let told = side.told(&format!("GET / HTTP/1.1\r\n{head}\r\n")).await;
        assert!(told.starts_with("HTTP/1.1 431 "), "{told}");
        assert!(told.contains("connection: close"));
    }
}

#[tokio::test]
async fn refuses_codings_that_are_not_plainly_chunked() {
    let side = Side::new(LONG);
    let told = side.told("POST / HTTP/1.1\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 400 "), "{told}");
}

#[tokio::test]
async fn refuses_a_body_of_a_malformed_chunk() {
    let side = Side::new(LONG);
    for chunks in ["zz\r\n", "2\r\nok\r\nzz\r\n", "2\r\nokay\r\n", "ffffffffffffffffff\r\n"] {
        let told =
            side.told(&format!("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{chunks}")).await;
        assert!(told.starts_with("HTTP/1.1 400 ") && told.contains("connection: close"), "{chunks:?}: {told}");
    }
}

#[tokio::test]
async fn tells_who_left_also_behind_requests_sent_ahead() {
    for ahead in ["", GET] {
        let mut side = Side::new(LONG);
        let mut client = side.connect();
        client.write_all(format!("GET /held HTTP/1.1\r\nhost: x\r\n\r\n{ahead}").as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
        drop(client);
        assert_eq!(timeout(LONG, side.left.recv()).await.unwrap(), Some(0));
    }
}

#[tokio::test]
async fn a_panic_costs_its_request_and_is_counted() {
    let side = Side::new(LONG);
    let told = side.told("GET /panic HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(told.starts_with("HTTP/1.1 500 "), "{told}");
    assert_eq!(side.panics.count(), 1);
}

#[tokio::test]
async fn an_answer_that_nobody_ends_is_broken_off() {
    let side = Side::new(LONG);
    let told = side.told("GET /abandoned HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(!told.ends_with("0\r\n\r\n"), "{told}");
}

#[tokio::test]
async fn leaves_and_stops() {
    let side = Side::new(LONG);
    let (mut kept, mut silent) = (side.connect(), side.connect());
    kept.write_all(GET.as_bytes()).await.unwrap();
    assert!(!until(&mut kept, "\r\n\r\n").await.contains("connection: close"));
    side.server.leave();
    kept.write_all(GET.as_bytes()).await.unwrap();
    assert!(rest(&mut kept).await.contains("connection: close"));
    side.server.stop();
    assert_eq!(rest(&mut silent).await, "");
    drop(silent);
    timeout(LONG, async {
        while side.server.connections() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn cuts_what_is_under_way() {
    let side = Side::new(LONG);
    let mut client = side.connect();
    client.write_all(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    tokio::task::yield_now().await;
    side.server.cut();
    assert_eq!(rest(&mut client).await, "");
}

/// There are thousands of connections, and a stream is in this for as long as it lasts.
#[test]
fn a_connection_under_way_is_small() {
    fn size<F>(_: impl Fn(DuplexStream, Ends, Counted, Arc<Http>) -> F) -> usize {
        size_of::<F>()
    }
    assert!(size(serve) <= 2048, "{} bytes", size(serve));
}
