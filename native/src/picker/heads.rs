//! Heads of requests and answers as Envoy tells them, and what is changed of them. Pure.

use bytes::Bytes;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Uri, Version};

use super::messages::{HeaderMutation, HeaderValue as Header, HttpHeaders, Kind, Metadata, Struct, Value};

/// Where the endpoints are told that Envoy may choose among, and those that were chosen.
const SUBSET_SPACE: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const SPACE: &str = "envoy.lb";
pub const ENDPOINT: &str = "x-gateway-destination-endpoint";
const SERVED: &str = "x-gateway-destination-endpoint-served";
/// Headers that Envoy sets or drops by itself, as those that begin with these: it finds no route without the latter.
const ENVOYS: [&str; 8] =
    ["connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade"];
const OF_ENVOY: [&str; 3] = [":", "x-envoy-", "x-forwarded-"];

/// A request's or an answer's headers.
#[must_use]
pub fn fields(told: HttpHeaders) -> Vec<Header> {
    told.headers.map(|map| map.headers).unwrap_or_default()
}

/// The value of a header; None where there is none.
#[must_use]
pub fn value<'a>(fields: &'a [Header], name: &str) -> Option<&'a [u8]> {
    fields.iter().find(|field| field.key == name).map(Header::bytes)
}

/// The head of a request; None where it is none.
#[must_use]
pub fn request_head(fields: &[Header]) -> Option<Parts> {
    let mut head = Request::new(()).into_parts().0;
    head.version = Version::HTTP_11;
    head.method = Method::from_bytes(value(fields, ":method")?).ok()?;
    head.uri = Uri::try_from(value(fields, ":path")?).ok()?;
    head.headers = HeaderMap::with_capacity(fields.len());
    for field in fields.iter().filter(|field| !field.key.starts_with(':')) {
        head.headers.append(HeaderName::try_from(&field.key).ok()?, HeaderValue::from_bytes(field.bytes()).ok()?);
    }
    if let Some(Ok(host)) = value(fields, ":authority").map(HeaderValue::from_bytes) {
        head.headers.entry(HOST).or_insert(host);
    }
    Some(head)
}

/// Turns the headers `from` a client into those `to` a worker, for the endpoints that were chosen, in order.
#[must_use]
pub fn changed(from: &[Header], to: &[(String, String)], endpoints: &str) -> HeaderMutation {
    let mut mutation = HeaderMutation::default();
    mutation.set(ENDPOINT, Bytes::copy_from_slice(endpoints.as_bytes()));
    for (name, value) in to {
        if !from.iter().any(|field| field.key == *name && field.bytes() == value.as_bytes()) {
            mutation.set(name, Bytes::copy_from_slice(value.as_bytes()));
        }
    }
    let kept = |name: &str| {
        OF_ENVOY.iter().any(|prefix| name.starts_with(prefix))
            || name == ENDPOINT
            || ENVOYS.contains(&name)
            || to.iter().any(|(other, _)| other == name)
    };
    mutation.remove_headers = from.iter().map(|field| &field.key).filter(|name| !kept(name)).cloned().collect();
    mutation
}

/// The same endpoints as dynamic metadata.
#[must_use]
pub fn metadata(endpoints: &str) -> Struct {
    Struct::of(SPACE, Kind::Struct(Struct::of(ENDPOINT, Kind::Text(endpoints.to_owned()))))
}

/// The endpoint that has answered; None where Envoy does not tell.
#[must_use]
pub fn served(metadata: Option<&Metadata>) -> Option<String> {
    match &metadata?.filter_metadata.get(SPACE)?.fields.get(SERVED)?.kind {
        Some(Kind::Text(endpoint)) if !endpoint.is_empty() => Some(endpoint.clone()),
        _ => None,
    }
}

/// The endpoints to choose among, as a list whose elements may be lists with commas; None for all.
#[must_use]
pub fn subset(metadata: Option<&Metadata>) -> Option<Vec<String>> {
    let hint = metadata?.filter_metadata.get(SUBSET_SPACE)?.fields.get(SUBSET)?;
    let mut endpoints = Vec::new();
    add(hint, &mut endpoints);
    Some(endpoints)
}

fn add(hint: &Value, endpoints: &mut Vec<String>) {
    match &hint.kind {
        Some(Kind::Text(text)) => {
            endpoints.extend(text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned));
        }
        Some(Kind::List(list)) => list.values.iter().for_each(|value| add(value, endpoints)),
        Some(Kind::Struct(_)) | None => {}
    }
}
