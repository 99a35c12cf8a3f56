//! A request to a worker, as bytes.

use std::sync::Arc;

use bytes::Bytes;

use super::call::Cut;
use super::stream::Verified;

/// What of a request this client does not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsupported {
    /// Its scheme is not http, or https with authorities to verify the worker by, or it is more than a host, a port and
    /// a path without escapes to be made.
    Url,
    Path,
    /// A name or value is not plain, or is one that this client sets.
    Header,
}

/// A request to one origin.
#[derive(Debug, Clone)]
pub struct Request {
    /// Names a pool of connections.
    pub origin: Arc<str>,
    /// Host and port.
    pub address: Arc<str>,
    /// How TLS is verified; None for none.
    pub verified: Option<Verified>,
    pub head: Bytes,
    pub body: Bytes,
    /// Has its answer break off.
    pub cut: Cut,
}

const OWN: [&str; 4] = ["host", "content-length", "transfer-encoding", "connection"];

impl Request {
    /// A POST of `body` to `url` and `path`.
    ///
    /// # Errors
    /// It is none that this client sends.
    pub fn post<'a>(
        url: &str,
        path: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        body: Bytes,
        verified: Option<Verified>,
    ) -> Result<Self, Unsupported> {
        let framing = format!("\r\ncontent-length: {}", body.len());
        Self::framed("POST ", url, path, headers, body, verified, &framing)
    }

    /// A GET of `url` and `path`.
    ///
    /// # Errors
    /// It is none that this client sends.
    pub fn get<'a>(
        url: &str,
        path: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        verified: Option<Verified>,
    ) -> Result<Self, Unsupported> {
        Self::framed("GET ", url, path, headers, Bytes::new(), verified, "")
    }

    /// As `post`, of a request whose body does not end with `body`.
    ///
    /// # Errors
    /// It is none that this client sends.
    pub fn begun<'a>(
        url: &str,
        path: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        body: &[u8],
        verified: Option<Verified>,
    ) -> Result<Self, Unsupported> {
        let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n"].concat();
        Self::framed("POST ", url, path, headers, chunk.into(), verified, "\r\ntransfer-encoding: chunked")
    }

    fn framed<'a>(
        method: &str,
        url: &str,
        path: &str,
        headers: impl IntoIterator<Item = (&'a str, &'a str)>,
        body: Bytes,
        verified: Option<Verified>,
        framing: &str,
    ) -> Result<Self, Unsupported> {
        let (scheme, port) = if verified.is_some() { ("https://", ":443") } else { ("http://", ":80") };
        let rest = url.strip_prefix(scheme).ok_or(Unsupported::Url)?;
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if !is_authority(authority) || !is_target(base) {
            return Err(Unsupported::Url);
        }
        if !is_target(path) || base.is_empty() && path.is_empty() {
            return Err(Unsupported::Path);
        }
        let mut head = Vec::with_capacity(512);
        for part in [method, base, path, " HTTP/1.1\r\nhost: ", authority.trim_end_matches(port)] {
            head.extend_from_slice(part.as_bytes());
        }
        for (name, value) in headers {
            add_field(&mut head, name, value)?;
        }
        head.extend_from_slice(format!("{framing}\r\n\r\n").as_bytes());
        let address = address(authority, port);
        let origin =
            verified.as_ref().map_or_else(|| Arc::clone(&address), |how| format!("{address}{}", how.mark()).into());
        Ok(Self { origin, address, verified, head: head.into(), body, cut: Cut::default() })
    }
}

fn add_field(head: &mut Vec<u8>, name: &str, value: &str) -> Result<(), Unsupported> {
    let plain = !name.is_empty() && name.bytes().all(is_token) && !value.bytes().any(|byte| b"\r\n\0".contains(&byte));
    if !plain || OWN.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return Err(Unsupported::Header);
    }
    for part in ["\r\n", name, ": ", value] {
        head.extend_from_slice(part.as_bytes());
    }
    Ok(())
}

/// Host and port; the port is always there.
fn address(authority: &str, default_port: &str) -> Arc<str> {
    let after_brackets = &authority[authority.rfind(']').unwrap_or(0)..];
    if after_brackets.contains(':') { authority.into() } else { format!("{authority}{default_port}").into() }
}

fn is_authority(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte))
}

/// Whether a path needs no quoting.
fn is_target(text: &str) -> bool {
    (text.is_empty() || text.starts_with('/'))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~/?&=%:+,;@!$'()*".contains(&byte))
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn post(url: &str, path: &str, headers: &[(&str, &str)]) -> Result<(String, String), Unsupported> {
        let request = Request::post(url, path, headers.iter().copied(), Bytes::from_static(b"{}"), None)?;
        Ok((request.origin.to_string(), String::from_utf8(request.head.to_vec()).unwrap()))
    }

    #[test]
    fn writes_a_head() {
        let (origin, head) = post("http://h:8000", "/v1/x?a=b", &[("a-b", "ü c")]).unwrap();
        assert_eq!(origin, "h:8000");
        assert_eq!(head, "POST /v1/x?a=b HTTP/1.1\r\nhost: h:8000\r\na-b: ü c\r\ncontent-length: 2\r\n\r\n");
        let (origin, head) = post("http://[::1]/base", "/v1", &[]).unwrap();
        assert_eq!(origin, "[::1]:80");
        assert_eq!(head, "POST /base/v1 HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 2\r\n\r\n");
        assert!(post("http://[::1]:80", "/", &[]).unwrap().1.contains("host: [::1]\r\n"));
    }

    #[test]
    fn asks_without_a_body() {
        let request = Request::get("http://worker_1", "/health", [("a", "b")], None).unwrap();
        assert_eq!(request.head, "GET /health HTTP/1.1\r\nhost: worker_1\r\na: b\r\n\r\n");
        assert!(request.body.is_empty());
    }

    #[test]
    fn refuses_what_is_not_plain() {
        for url in ["https://h", "http://", "http://u@h", "http://h /", "ftp://h", "http://ü", "h:80"] {
            assert_eq!(post(url, "/", &[]), Err(Unsupported::Url), "{url}");
        }
        for path in ["", "x", "/ ", "/ü", "/\r\n", "/#a"] {
            assert_eq!(post("http://h", path, &[]), Err(Unsupported::Path), "{path}");
        }
        for header in [("a\r", "b"), ("a", "b\nc: d"), ("a", "\0"), ("", "b"), ("Host", "x"), ("Connection", "close")] {
            assert_eq!(post("http://h", "/", &[header]), Err(Unsupported::Header), "{header:?}");
        }
    }
}
