//! Sends an answer that is still written, in chunks, and holds nothing while it waits for more of it.
//!
//! hyper has read the request; what it holds for a connection, 16 KiB and more, is let go for as long as this lasts.

use std::future::poll_fn;
use std::io::{Error, Result, Write};
use std::pin::Pin;
use std::task::Poll;
use std::time::SystemTime;

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Version};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::answer::AnswerBody;

/// Bytes of chunks that are written at once.
const AT_ONCE: usize = 16 * 1024;

/// Whether a request may be answered so: by chunks, on a connection that stays.
pub fn may_be_asked(head: &Parts) -> bool {
    let stays = |value: &hyper::header::HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"keep-alive");
    head.method == Method::POST
        && head.version == Version::HTTP_11
        && head.headers.get_all(CONNECTION).iter().all(stays)
}

/// Whether this answer may be sent so.
pub fn is_plain<B: Body>(response: &Response<B>) -> bool {
    let framing = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, DATE];
    response.status() == StatusCode::OK
        && response.body().size_hint().exact().is_none()
        && !framing.iter().any(|name| response.headers().contains_key(name))
}

/// Sends it all.
///
/// # Errors
/// The client is gone, or the body broke off: the connection is to be cut.
pub async fn send<IO: AsyncWrite + Unpin>(io: &mut IO, response: Response<AnswerBody>) -> Result<()> {
    let mut waiting = head(&response);
    let mut body = response.into_body();
    let mut last = next(&mut body, &mut waiting, false).await?;
    loop {
        io.write_all(&waiting).await?;
        if last {
            return Ok(()); // the request is over once `body` is dropped
        }
        waiting = Vec::new();
        last = next(&mut body, &mut waiting, true).await?;
    }
}

fn head<B>(response: &Response<B>) -> Vec<u8> {
    let mut head = Vec::with_capacity(512);
    head.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    for (name, value) in response.headers() {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    let date = httpdate::fmt_http_date(SystemTime::now());
    head.extend_from_slice(format!("transfer-encoding: chunked\r\ndate: {date}\r\n\r\n").as_bytes());
    head
}

/// Adds the chunks that are there; awaits one where it is to `wait`. Whether that was the last.
async fn next<B>(body: &mut B, into: &mut Vec<u8>, wait: bool) -> Result<bool>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    poll_fn(|context| {
        let before = into.len();
        while into.len() < AT_ONCE {
            match Pin::new(&mut *body).poll_frame(context) {
                Poll::Ready(Some(frame)) => add(into, frame.map_err(Error::other)?)?,
                Poll::Ready(None) => {
                    into.extend_from_slice(b"0\r\n\r\n");
                    return Poll::Ready(Ok(true));
                }
                Poll::Pending if wait && into.len() == before => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(false))
    })
    .await
}

fn add(into: &mut Vec<u8>, frame: Frame<Bytes>) -> Result<()> {
    let Ok(data) = frame.into_data() else { return Ok(()) };
    if data.is_empty() {
        return Ok(()); // it would be the end
    }
    write!(into, "{:X}\r\n", data.len())?;
    into.extend_from_slice(&data);
    into.extend_from_slice(b"\r\n");
    Ok(())
}
