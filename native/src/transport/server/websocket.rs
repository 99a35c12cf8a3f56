//! A `WebSocket` is another server's: the connection is passed on to that, byte for byte, less what a tap takes out.

use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::BytesMut;
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HeaderMap, HeaderName, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::net::UnixStream;

use super::answer::{Answer, AnswerBody, Over};
use super::connection::{Connection, stuck};
use super::messages::{Messages, Part};
use super::{Counted, Stage};

/// Names a connection to the other server by the number of its tap.
const TAP: HeaderName = HeaderName::from_static("x-cachefleet-tap");

/// Where `WebSocket`s are passed on to, and what may be taken out of them.
pub struct Websockets {
    /// A Unix socket.
    pub path: PathBuf,
    pub taps: Option<Box<dyn Taps>>,
}

/// Makes the taps of connections.
pub trait Taps: Send + Sync {
    /// The tap of one more connection, and its number.
    fn open(&self) -> (u64, Arc<dyn Tap>);
}

/// Takes messages of a client out of its connection.
pub trait Tap: Send + Sync {
    /// Whether this binary message is dealt with, so that it is not passed on; so many were passed on before it.
    /// Called on the transport's threads.
    fn takes(&self, message: &[u8], passed: u64) -> bool;
}

/// Whether a request asks for a WebSocket.
pub fn is_asked_for(request: &Request<Incoming>) -> bool {
    let headers = request.headers();
    headers.get(UPGRADE).is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && connection_options(headers).any(|option| option.eq_ignore_ascii_case(b"upgrade"))
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

/// Asks the other server; where that agrees, all that follows goes from one to the other.
pub async fn pass(
    to: &Websockets,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    over: Over,
) -> Response<AnswerBody> {
    match ask(to, connection, request).await {
        Ok(answer) => answer.map(|body| AnswerBody::passed(body, over)),
        Err(_) => Answer::text(StatusCode::BAD_GATEWAY, "Bad Gateway").response(over, None, true),
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn ask(
    to: &Websockets,
    connection: &Arc<Connection>,
    mut request: Request<Incoming>,
) -> Result<Response<Incoming>, Failure> {
    let client = hyper::upgrade::on(&mut request);
    let (mut sender, serving) = http1::handshake(TokioIo::new(UnixStream::connect(&to.path).await?)).await?;
    tokio::spawn(serving.with_upgrades());
    let tap = to.taps.as_ref().map(|taps| taps.open()).map(|(number, tap)| {
        request.headers_mut().insert(TAP, number.into());
        tap
    });
    let mut answer = sender.send_request(request.map(|_| Empty::<Bytes>::new())).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let server = hyper::upgrade::on(&mut answer);
        let counted = connection.progress.handed_over();
        connection.heads.upgraded();
        tokio::spawn(relay(client, server, Arc::clone(connection), tap, counted));
    }
    Ok(answer)
}

async fn relay(
    client: OnUpgrade,
    server: OnUpgrade,
    connection: Arc<Connection>,
    tap: Option<Arc<dyn Tap>>,
    _counted: Option<Counted>,
) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
    let (mut from_client, mut to_client) = split(TokioIo::new(client));
    let (mut from_server, mut to_server) = split(TokioIo::new(server));
    let up = async {
        // Whether this broke or ended, the server says how the connection ends.
        let _ = match tap {
            None => copy(&mut from_client, &mut to_server).await.map(drop),
            Some(tap) => tapped(&mut from_client, &mut to_server, tap.as_ref()).await,
        };
        let _ = to_server.shutdown().await;
        pending::<()>().await;
    };
    let down = async {
        copy(&mut from_server, &mut to_client).await?;
        to_client.shutdown().await
    };
    let mut stage = connection.shared.stages();
    tokio::select! {
        _ = down => {}
        () = up => {}
        () = stuck(&connection.progress, &connection.http.bounds) => {}
        _ = stage.wait_for(|stage| *stage == Stage::Cut) => {}
    }
}

/// Passes on what a client sends, less the messages that its tap takes.
async fn tapped<R, W>(from_client: &mut R, to_server: &mut W, tap: &dyn Tap) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut messages, mut received, mut passed) = (Messages::default(), BytesMut::new(), BytesMut::new());
    while from_client.read_buf(&mut received).await? > 0 {
        while let Some(part) = messages.next(&mut received) {
            match part {
                Part::Passed(bytes) => passed.unsplit(bytes),
                Part::Message { frame, payload } if !tap.takes(&payload, messages.passed) => {
                    messages.passed += 1;
                    passed.unsplit(frame);
                }
                Part::Message { .. } => {}
            }
        }
        if !passed.is_empty() {
            to_server.write_all_buf(&mut passed).await?;
        }
    }
    to_server.write_all_buf(&mut received).await
}
