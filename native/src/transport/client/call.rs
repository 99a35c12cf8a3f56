//! One request to a worker, and its answer: whole, or a stream that is read on demand.

use std::mem::{replace, take};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use memchr::memchr_iter;
use tokio::select;
use tokio::sync::Notify;

use super::body::BodyDecoder;
use super::connection::Connection;
use super::head::{Framing, Head, MAX_HEAD_BYTES, head_end, read_head};
use super::request::Request;
use super::{Client, Failure};

/// Interim answers (1xx) before the one that counts, at most.
const MAX_INTERIM: usize = 16;
/// Events that are given with a stream's beginning, at most: as a rule one that names the role, and one that says
/// something. What follows can be relayed.
const FIRST_EVENTS: usize = 2;
/// Room made for a body before any of it is here, at most.
const MAX_RESERVED: u64 = 1024 * 1024;

/// What a worker answers.
pub enum Opened {
    Whole(Whole),
    /// With its first bytes: `FIRST_EVENTS` or fewer, as a rule. Also a long body that is no stream of events.
    Stream(Head, Vec<u8>, Box<Answer>),
}

/// An answer that is all there.
pub struct Whole {
    pub head: Head,
    pub body: Vec<u8>,
}

/// Has an answer that has begun break off, from any thread: to whoever reads it, its connection is lost.
#[derive(Debug, Clone, Default)]
pub struct Cut(Arc<Notify>);

impl Cut {
    pub fn make(&self) {
        self.0.notify_one();
    }

    async fn made(&self) {
        self.0.notified().await;
    }
}

/// The body of an answer that has begun. To drop it before its end cuts the connection.
pub struct Answer {
    client: Arc<Client>,
    origin: Arc<str>,
    connection: Option<Connection>,
    cut: Cut,
    /// How long it waits for a byte.
    idle: Duration,
    decoder: BodyDecoder,
    reusable: bool,
    /// Read, and not decoded yet.
    raw: Vec<u8>,
    /// Decoded, and not given away yet.
    held: Vec<u8>,
}

/// Sends a request and reads its answer: all of it, or the beginning of a stream of events.
///
/// # Errors
/// No answer comes of it.
pub async fn open(client: &Arc<Client>, request: Request) -> Result<Opened, Failure> {
    let (mut connection, request) = connected(client, request).await?;
    connection.send(request.head, request.body);
    let (head, raw) = read_heads(client, &mut connection).await?;
    let mut answer = Answer::begun(client, request.origin, request.cut, connection, head.framing, raw);
    answer.reusable = head.reusable;
    answer.opened(head).await
}

/// A connection for a request: one that waited, or a new one.
pub async fn connected(client: &Client, request: Request) -> Result<(Connection, Request), Failure> {
    let connection = match client.pool.take(&request.origin) {
        Some(waited) => waited,
        None => Connection::open(&request.address, request.verified.as_ref(), client.bounds.connect).await?,
    };
    Ok((connection, request))
}

/// The head that counts, and what was read beyond it.
pub async fn read_heads(client: &Client, connection: &mut Connection) -> Result<(Head, Vec<u8>), Failure> {
    let (mut raw, mut scanned) = (Vec::new(), 0);
    for _ in 0..=MAX_INTERIM {
        let end = loop {
            match head_end(&raw, scanned) {
                Some(end) if end <= MAX_HEAD_BYTES => break end,
                None if raw.len() <= MAX_HEAD_BYTES => scanned = raw.len().saturating_sub(3),
                _ => return Err(Failure::Lost),
            }
            if connection.read(&mut raw, client.bounds.idle).await? == 0 {
                return Err(Failure::Lost);
            }
        };
        let head = read_head(&raw[..end]).map_err(|_| Failure::Lost)?;
        raw.drain(..end);
        match head.status {
            200..=599 => return Ok((head, raw)),
            100 | 102..=199 => scanned = 0,
            _ => break,
        }
    }
    Err(Failure::Lost)
}

/// Where the first events end, or all that there is. A comment is none: it goes with the event that it is before.
fn events_end(data: &[u8], events: usize) -> usize {
    let ends = |end: &usize| data[..*end].ends_with(b"\n\n") || data[..*end].ends_with(b"\r\n\r\n");
    let mut start = 0;
    let says = |end: &usize| data[replace(&mut start, *end)] != b':';
    memchr_iter(b'\n', data).map(|at| at + 1).filter(ends).filter(says).nth(events - 1).unwrap_or(data.len())
}

impl Answer {
    /// An answer whose head was read, and `raw` beyond it. Its connection is not used again.
    pub fn begun(
        client: &Arc<Client>,
        origin: Arc<str>,
        cut: Cut,
        connection: Connection,
        framing: Framing,
        raw: Vec<u8>,
    ) -> Self {
        let (client, decoder, idle) = (Arc::clone(client), BodyDecoder::new(framing), client.bounds.idle);
        let (connection, held) = (Some(connection), Vec::new());
        Self { client, origin, connection, cut, idle, decoder, reusable: false, raw, held }
    }

    /// Reads all of it, or the beginning of a stream of events.
    ///
    /// # Errors
    /// It breaks off.
    pub async fn opened(mut self, head: Head) -> Result<Opened, Failure> {
        if head.is_stream() {
            let mut first = Vec::new();
            self.events(&mut first, FIRST_EVENTS).await?;
            return Ok(Opened::Stream(head, first, Box::new(self)));
        }
        let body = self.rest(head.framing).await?;
        if !self.ended() {
            return Ok(Opened::Stream(head, body, Box::new(self)));
        }
        Ok(Opened::Whole(Whole { head, body }))
    }

    /// Sends the end of its request, which it did not wait for; then its connection may be used again where that is
    /// `reusable`.
    pub fn end_request(&mut self, end: Bytes, reusable: bool) {
        self.reusable = reusable;
        if let Some(connection) = &mut self.connection {
            connection.send_more(end);
        }
    }

    /// Waits for a byte no longer than `quiet`, where that is less than any answer may take.
    pub fn wait_less(&mut self, quiet: Duration) {
        self.idle = self.client.bounds.idle.min(quiet);
    }

    /// Waits as long as for any answer; whether it did not before.
    pub fn wait_as_any(&mut self) -> bool {
        replace(&mut self.idle, self.client.bounds.idle) < self.client.bounds.idle
    }

    /// Whether all of it has been read.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.decoder.ended() && self.held.is_empty()
    }

    /// Adds to `body` what comes next of it; nothing only at its end.
    ///
    /// # Errors
    /// The answer breaks off.
    pub async fn more(&mut self, body: &mut Vec<u8>) -> Result<(), Failure> {
        let before = body.len();
        body.append(&mut take(&mut self.held));
        while body.len() == before && !self.ended() {
            if self.raw.is_empty() {
                self.read().await?;
            }
            self.decode(body)?;
        }
        Ok(())
    }

    /// As `more`, but of what comes next only so many events, where that many end in it.
    ///
    /// # Errors
    /// The answer breaks off.
    pub async fn events(&mut self, body: &mut Vec<u8>, events: usize) -> Result<(), Failure> {
        let before = body.len();
        self.more(body).await?;
        self.held = body.split_off(before + events_end(&body[before..], events));
        Ok(())
    }

    /// Takes back what `more` gave last, or the end of it: it comes next again.
    pub fn unread(&mut self, body: Vec<u8>) {
        self.held = body;
    }

    /// All of a body, or of a long one its beginning; of one that is said to be long nothing.
    async fn rest(&mut self, framing: Framing) -> Result<Vec<u8>, Failure> {
        let most = self.client.bounds.whole;
        let mut body = match framing {
            Framing::Length(length) if length > most as u64 => return Ok(Vec::new()),
            Framing::Length(length) => Vec::with_capacity(length.min(MAX_RESERVED) as usize),
            Framing::Chunked | Framing::Close => Vec::new(),
        };
        while !self.ended() && body.len() <= most {
            self.more(&mut body).await?;
        }
        Ok(body)
    }

    async fn read(&mut self) -> Result<(), Failure> {
        let connection = self.connection.as_mut().ok_or(Failure::Lost)?;
        let read = select! {
            biased;
            read = connection.read(&mut self.raw, self.idle) => read?,
            () = self.cut.made() => return Err(Failure::Lost),
        };
        if read == 0 && !self.decoder.cut() {
            return Err(Failure::Lost);
        }
        Ok(())
    }

    /// Decodes what was read; gives the connection back at the end.
    fn decode(&mut self, body: &mut Vec<u8>) -> Result<(), Failure> {
        let raw = take(&mut self.raw);
        let taken = self.decoder.feed(&raw, body).map_err(|_| Failure::Lost)?;
        if self.decoder.ended()
            && let Some(connection) = self.connection.take()
            && self.reusable
            && taken == raw.len()
            && let Some(waiting) = connection.into_waiting()
        {
            self.client.pool.put(Arc::clone(&self.origin), waiting);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::Bounds;
    use super::*;

    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    const EVENTS: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

    struct Worker {
        listener: TcpListener,
        client: Arc<Client>,
    }

    impl Worker {
        async fn new(idle: Duration) -> Self {
            let (connect, keep_alive) = (Duration::from_secs(5), Duration::from_secs(5));
            let client = Arc::new(Client::new(Bounds { connect, idle, keep_alive, whole: 1000 }));
            Self { listener: TcpListener::bind("127.0.0.1:0").await.unwrap(), client }
        }

        fn request(&self, body: &[u8]) -> Request {
            let url = format!("http://{}", self.listener.local_addr().unwrap());
            Request::post(&url, "/x", [], Bytes::copy_from_slice(body), None).unwrap()
        }

        async fn accepted(&self) -> TcpStream {
            self.listener.accept().await.unwrap().0
        }

        /// What comes of a request that is answered so on a new connection, and that connection.
        async fn answers(&self, answer: &str) -> (Result<Opened, Failure>, TcpStream) {
            let served = async {
                let mut connection = self.accepted().await;
                read_request(&mut connection).await;
                connection.write_all(answer.as_bytes()).await.unwrap();
                connection
            };
            tokio::join!(open(&self.client, self.request(b"{}")), served)
        }

        async fn fails(&self, answer: &str) -> Failure {
            let served = async {
                let mut connection = self.accepted().await;
                read_request(&mut connection).await;
                connection.write_all(answer.as_bytes()).await.unwrap();
                connection.shutdown().await.unwrap();
            };
            tokio::join!(open(&self.client, self.request(b"{}")), served).0.err().unwrap()
        }
    }

    async fn read_request(connection: &mut TcpStream) -> Vec<u8> {
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            assert!(connection.read_buf(&mut request).await.unwrap() > 0);
        }
        request
    }

    fn whole(opened: Result<Opened, Failure>) -> (u16, Vec<u8>) {
        match opened {
            Ok(Opened::Whole(Whole { head, body })) => (head.status, body),
            Ok(Opened::Stream(..)) => panic!("a stream"),
            Err(failure) => panic!("{failure:?}"),
        }
    }

    fn stream(opened: Result<Opened, Failure>) -> (Vec<u8>, Box<Answer>) {
        match opened {
            Ok(Opened::Stream(_, first, answer)) => (first, answer),
            _ => panic!("no stream"),
        }
    }

    async fn worker() -> Worker {
        Worker::new(Duration::from_secs(5)).await
    }

    #[tokio::test]
    async fn an_answer_may_be_waited_for_less_long_and_read_on() {
        let worker = worker().await;
        let (opened, mut connection) = worker.answers(&format!("{EVENTS}8\r\ndata: 1\n\r\n")).await;
        let (mut read, mut answer) = stream(opened);
        answer.wait_less(Duration::from_millis(1));
        assert_eq!(answer.more(&mut read).await, Err(Failure::Silent));
        assert!(answer.wait_as_any() && !answer.wait_as_any());
        connection.write_all(b"1\r\n\n\r\n0\r\n\r\n").await.unwrap();
        answer.more(&mut read).await.unwrap();
        assert_eq!(read, b"data: 1\n\n");
        answer.wait_less(Duration::from_secs(50));
        assert!(!answer.wait_as_any());
    }

    #[tokio::test]
    async fn a_connection_is_used_again() {
        let worker = worker().await;
        let (opened, mut connection) = worker.answers(&format!("HTTP/1.1 100 Continue\r\n\r\n{OK}")).await;
        assert_eq!(whole(opened), (200, b"ok".to_vec()));
        for _ in 0..3 {
            let again = async {
                read_request(&mut connection).await;
                connection.write_all(OK.as_bytes()).await.unwrap();
            };
            let (opened, ()) = tokio::join!(open(&worker.client, worker.request(b"{}")), again);
            assert_eq!(whole(opened).1, b"ok");
        }
        worker.client.close();
        assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn one_on_which_more_came_than_was_asked_for_is_not() {
        let worker = worker().await;
        let (opened, _first) = worker.answers(&format!("{OK}{OK}")).await;
        whole(opened);
        assert_eq!(worker.client.pool.waiting(), 0);
        let (opened, mut second) = worker.answers(OK).await;
        whole(opened);
        assert_eq!(worker.client.pool.waiting(), 1);
        second.write_all(OK.as_bytes()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (opened, _third) = worker.answers("HTTP/1.1 404 x\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(whole(opened), (404, Vec::new()));
    }

    #[tokio::test]
    async fn one_that_its_worker_closes_is_not() {
        let worker = worker().await;
        for answer in [
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        ] {
            whole(worker.answers(answer).await.0);
            assert_eq!(worker.client.pool.waiting(), 0);
        }
    }

    #[tokio::test]
    async fn a_stream_is_read_on_demand_and_cut_where_it_is_dropped() {
        let worker = worker().await;
        let (opened, mut connection) = worker.answers(&format!("{EVENTS}3\r\nabc\r\n")).await;
        let (first, mut answer) = stream(opened);
        assert_eq!((first.as_slice(), answer.ended()), (b"abc".as_slice(), false));
        connection.write_all(b"1\r\nd\r\n0\r\n\r\n").await.unwrap();
        let mut rest = Vec::new();
        while !answer.ended() {
            answer.more(&mut rest).await.unwrap();
        }
        assert_eq!((rest.as_slice(), worker.client.pool.waiting()), (b"d".as_slice(), 1));
        worker.client.close();
        let (opened, mut connection) = worker.answers(&format!("{EVENTS}3\r\nabc\r\n")).await;
        drop(stream(opened));
        assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_long_body_is_read_on_demand() {
        let (worker, long) = (worker().await, "x".repeat(1001));
        for (framing, begun) in [("connection: close\r\n", 1001), ("content-length: 1001\r\n", 0)] {
            let (opened, connection) = worker.answers(&format!("HTTP/1.1 200 OK\r\n{framing}\r\n{long}")).await;
            let (mut body, mut answer) = stream(opened);
            assert_eq!(body.len(), begun);
            drop(connection);
            while !answer.ended() {
                answer.more(&mut body).await.unwrap();
            }
            assert_eq!(body, long.as_bytes());
        }
    }

    #[tokio::test]
    async fn a_stream_begins_with_few_events_however_many_have_come() {
        let worker = worker().await;
        let (opened, _connection) =
            worker.answers(&format!("{EVENTS}e\r\na\r\n\r\nb\n\nc\n\n\n\nd\r\n0\r\n\r\n")).await;
        let (mut all, mut answer) = stream(opened);
        assert_eq!((all.as_slice(), answer.ended()), (b"a\r\n\r\nb\n\n".as_slice(), false));
        answer.events(&mut all, 1).await.unwrap();
        assert_eq!((all.as_slice(), answer.ended()), (b"a\r\n\r\nb\n\nc\n\n".as_slice(), false));
        answer.more(&mut all).await.unwrap();
        assert_eq!((all.as_slice(), answer.ended()), (b"a\r\n\r\nb\n\nc\n\n\n\nd".as_slice(), true));
    }

    #[test]
    fn a_comment_goes_with_the_event_that_it_is_before() {
        let data = b": a\n\n: b\n\nc\n\n: d\n\ne\n\nf\n\n";
        let given = |events| &data[..events_end(data, events)];
        assert_eq!((given(1), given(2)), (&data[..13], &data[..21]));
        assert_eq!(events_end(b": a\n\n: b\n\n", 1), 10);
    }

    #[tokio::test]
    async fn failures_are_told_apart() {
        let worker = worker().await;
        for lost in [
            "",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nx",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 101 x\r\n\r\n",
            "HTTP/1.1 600 x\r\n\r\n",
            EVENTS,
        ] {
            assert_eq!(worker.fails(lost).await, Failure::Lost, "{lost}");
        }
        assert_eq!(worker.fails(&"HTTP/1.1 103 x\r\n\r\n".repeat(40)).await, Failure::Lost);
        let request = worker.request(b"{}");
        drop(worker.listener);
        assert_eq!(open(&worker.client, request).await.err(), Some(Failure::ConnectionRefused));
        let nowhere = Request::post("http://no.such.name.invalid", "/", [], Bytes::new(), None).unwrap();
        assert_eq!(open(&worker.client, nowhere).await.err(), Some(Failure::Unreachable));
    }

    #[tokio::test]
    async fn a_head_without_end_is_bounded() {
        let worker = worker().await;
        let flooding = async {
            let mut connection = worker.accepted().await;
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\n").await;
            while connection.write_all(b"a: b\r\n").await.is_ok() {}
        };
        let (opened, ()) = tokio::join!(open(&worker.client, worker.request(b"{}")), flooding);
        assert_eq!(opened.err(), Some(Failure::Lost));
    }

    #[tokio::test]
    async fn silence_is_bounded() {
        let worker = Worker::new(Duration::from_millis(20)).await;
        let (opened, connection) = worker.answers("HTTP/1.1 200 OK\r\n").await;
        assert_eq!(opened.err(), Some(Failure::Silent));
        drop(connection);
        let (opened, _connection) = worker.answers(&format!("{EVENTS}1\r\nx\r\n")).await;
        let (_, mut answer) = stream(opened);
        assert_eq!(answer.more(&mut Vec::new()).await, Err(Failure::Silent));
    }

    #[tokio::test]
    async fn one_that_is_cut_breaks_off_whoever_reads_it() {
        let worker = worker().await;
        let request = worker.request(b"{}");
        let cut = request.cut.clone();
        let served = async {
            let mut connection = worker.accepted().await;
            read_request(&mut connection).await;
            connection.write_all(format!("{EVENTS}1\r\nx\r\n").as_bytes()).await.unwrap();
            connection
        };
        let (opened, mut connection) = tokio::join!(open(&worker.client, request), served);
        let (_, mut answer) = stream(opened);
        let mut rest = Vec::new();
        let cutting = async {
            tokio::task::yield_now().await;
            cut.make();
        };
        assert_eq!(tokio::join!(answer.more(&mut rest), cutting).0, Err(Failure::Lost));
        drop(answer);
        assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn an_answer_before_all_was_sent_is_taken() {
        let worker = worker().await;
        let body = vec![b'x'; 32 * 1024 * 1024];
        let served = async {
            let mut connection = worker.accepted().await;
            connection.write_all(OK.as_bytes()).await.unwrap();
            connection
        };
        let (opened, _connection) = tokio::join!(open(&worker.client, worker.request(&body)), served);
        assert_eq!(whole(opened).1, b"ok");
        assert_eq!(worker.client.pool.waiting(), 0);
    }
}
