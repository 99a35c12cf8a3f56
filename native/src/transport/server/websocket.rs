//! A `WebSocket` is another server's: the connection is passed on to that, byte for byte.

use std::future::pending;
use std::path::Path;
use std::sync::Arc;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HeaderMap, UPGRADE};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, copy, split};
use tokio::net::UnixStream;

use super::answer::{Answer, AnswerBody, Over};
use super::connection::{Connection, stuck};
use super::{Counted, Stage};

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

/// Asks the server at `path`; where that agrees, all that follows goes from one to the other.
pub async fn pass(
    path: &Path,
    connection: &Arc<Connection>,
    request: Request<Incoming>,
    over: Over,
) -> Response<AnswerBody> {
    match ask(path, connection, request).await {
        Ok(answer) => answer.map(|body| AnswerBody::passed(body, over)),
        Err(_) => Answer::text(StatusCode::BAD_GATEWAY, "Bad Gateway").response(over, None, true),
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn ask(
    path: &Path,
    connection: &Arc<Connection>,
    mut request: Request<Incoming>,
) -> Result<Response<Incoming>, Failure> {
    let client = hyper::upgrade::on(&mut request);
    let (mut sender, serving) = http1::handshake(TokioIo::new(UnixStream::connect(path).await?)).await?;
    tokio::spawn(serving.with_upgrades());
    let mut answer = sender.send_request(request.map(|_| Empty::<Bytes>::new())).await?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let server = hyper::upgrade::on(&mut answer);
        let counted = connection.progress.handed_over();
        connection.heads.upgraded();
        tokio::spawn(relay(client, server, Arc::clone(connection), counted));
    }
    Ok(answer)
}

async fn relay(client: OnUpgrade, server: OnUpgrade, connection: Arc<Connection>, _counted: Option<Counted>) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
    let (mut from_client, mut to_client) = split(TokioIo::new(client));
    let (mut from_server, mut to_server) = split(TokioIo::new(server));
    let up = async {
        // Whether this broke or ended, the server says how the connection ends.
        let _ = copy(&mut from_client, &mut to_server).await;
        let _ = to_server.shutdown().await;
        pending::<()>().await;
    };
    let down = async {
        copy(&mut from_server, &mut to_client).await?;
        to_client.shutdown().await
    };
    let shared = &connection.shared;
    let mut stage = shared.stage.subscribe();
    tokio::select! {
        _ = down => {}
        () = up => {}
        () = stuck(&connection.progress, &shared.bounds) => {}
        _ = stage.wait_for(|stage| *stage == Stage::Cut) => {}
    }
}
