//! What clients say of caching: how long to keep a prompt, and which belong together.

use super::values::{Object, listed, text, unquoted};
use super::{Endpoint, Fault, Members};
use bytes::Bytes;
use memchr::memmem::find;

const KEY: &str = "prompt_cache_key";
const MAX_KEY: usize = 1024;
const RETENTION: &str = "prompt_cache_retention";
const CONTROL: &str = "cache_control";
const KEEP: &str = "cachefleet_keep";
const XARGS: &str = "vllm_xargs";
/// Messages, their blocks, and blocks of a tool's result: nothing below has breakpoints.
const LEVELS: usize = 3;

/// Add to the members how long workers are to keep the prompt, where the client says so.
pub(super) fn add_retention(fields: &mut Members, endpoint: Endpoint) -> Result<(), Fault> {
    let seconds = match endpoint {
        Endpoint::Messages => marked_seconds(fields)?,
        _ if endpoint.generates() => retention_seconds(fields)?,
        _ => 0,
    };
    if seconds == 0 {
        return Ok(());
    }
    let arguments = fields.given(XARGS).map_or(Ok(Some(Members::default())), Members::of)?;
    if let Some(mut arguments) = arguments {
        arguments.set(KEEP, seconds.to_string());
        fields.set(XARGS, arguments.encode());
    } // else the engine refuses what is no object
    Ok(())
}

/// The key by which the client says that prompts begin alike; "" without one.
pub(super) fn cache_key(fields: &Members, endpoint: Endpoint) -> Result<String, Fault> {
    let key = if endpoint.generates() { text(fields, KEY)? } else { String::new() };
    if key.chars().count() > MAX_KEY {
        return Err(Fault::member(KEY, format!("`{KEY}` must have at most {MAX_KEY} characters.")));
    }
    Ok(key)
}

fn retention_seconds(fields: &Members) -> Result<u32, Fault> {
    match &*text(fields, RETENTION)? {
        "" | "in_memory" | "in-memory" => Ok(0),
        "24h" => Ok(86_400),
        _ => Err(Fault::member(RETENTION, format!("`{RETENTION}` must be one of in_memory, 24h."))),
    }
}

/// The longest time that any breakpoint asks for; it stands for the whole prompt.
fn marked_seconds(fields: &Members) -> Result<u32, Fault> {
    let mut longest = fields.given(CONTROL).map_or(Ok(0), |marker| seconds(marker))?;
    for list in ["system", "tools", "messages"].iter().filter_map(|name| fields.get(name)) {
        longest = longest.max(listed_seconds(list, LEVELS)?);
    }
    Ok(longest)
}

/// The same of the breakpoints in a list of messages, blocks or tools; another shape is the worker's to refuse.
fn listed_seconds(list: &[u8], levels: usize) -> Result<u32, Fault> {
    if levels == 0 || find(list, b"\"cache_control\"").is_none() {
        return Ok(0);
    }
    let parts: Option<Vec<Object<'_>>> = listed(list).map(Object::of).collect();
    let mut longest = 0;
    for part in parts.unwrap_or_default() {
        let own = part.given(CONTROL).map_or(Ok(0), seconds)?;
        let inner = part.given("content").map_or(Ok(0), |content| listed_seconds(content, levels - 1))?;
        longest = longest.max(own).max(inner);
    }
    Ok(longest)
}

fn seconds(marker: &[u8]) -> Result<u32, Fault> {
    let refused = || {
        let message = format!("`{CONTROL}` must have the type \"ephemeral\", and as `ttl`, if any, one of 5m, 1h.");
        Fault::member(CONTROL, message)
    };
    let marker = Object::of(marker).ok_or_else(refused)?;
    let ttl = if marker.has_any(&["ttl"]) { marker.given("ttl").and_then(unquoted) } else { Some("5m".into()) };
    match (marker.given("type").and_then(unquoted).as_deref(), ttl.as_deref()) {
        (Some("ephemeral"), Some("5m")) => Ok(300),
        (Some("ephemeral"), Some("1h")) => Ok(3600),
        _ => Err(refused()),
    }
}

/// Take out of `vllm_xargs` what only the control plane may set.
pub(super) fn sanitise_arguments(fields: &mut Members) -> Result<(), Fault> {
    let Some(value) = fields.get(XARGS) else { return Ok(()) };
    let Some(mut arguments) = Members::of(value)? else { return Ok(()) };
    let before = arguments.0.len();
    let private = ["kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "cache_salt"];
    arguments.keep(|name| !private.contains(&name) && !name.starts_with("cachefleet"));
    if arguments.0.len() < before {
        fields.set(XARGS, Bytes::from(arguments.encode()));
    }
    Ok(())
}
