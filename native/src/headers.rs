//! Which headers of a client's request are sent to a worker, and which of its answer to the client. Pure.

use std::borrow::Cow;

/// Name and value; names are in lower case.
pub type Field<'a> = (&'a [u8], &'a [u8]);

/// In place of a header's name: by what the gateway names a request to its worker. No client can send it.
const ACCOUNT: &[u8] = b":account";
/// The header that a worker gets it by (`cachefleet_core.engine.left_answers`).
const ACCOUNT_HEADER: &str = "x-cachefleet-account";
/// In place of a header's name: what the body is, where that is not JSON. No client can send it.
const CONTENT_TYPE: &[u8] = b":content-type";
/// Makes llm-d's simulator refuse a request; no effect with another value.
const THRESHOLD_HOOK: (&str, &str) = ("x-cache-threshold-finish-reason", "true");

fn is_dropped(name: &[u8]) -> bool {
    matches!(
        name,
        // Hop-by-hop (RFC 9110, 7.6.1), and headers that the client of the next hop sets itself.
        b"connection" | b"keep-alive" | b"proxy-connection" | b"te" | b"trailer" | b"transfer-encoding" | b"upgrade"
        | b"host" | b"content-length" | b"content-type" | b"content-encoding" | b"accept-encoding" | b"expect"
        // Credentials are for us, not for workers.
        | b"authorization" | b"proxy-authorization" | b"proxy-authenticate" | b"cookie" | b"x-api-key"
        // vLLM's test hooks: set by this gateway only.
        | b"x-cache-threshold" | b"x-cache-threshold-finish-reason"
        // Acted upon by this gateway: also those by which coding agents name a session and its threads.
        | b"prefer" | b"x-claude-code-session-id" | b"x-claude-code-agent-id" | b"x-opencode-session"
        | b"x-session-affinity" | b"session-id" | b"thread-id"
    ) || [
        b"x-cachefleet-".as_slice(),
        // Where blocks come from, and which rank computes: of gateways of other fleets, and acted upon by connectors.
        b"x-prefiller-",
        b"x-encoder-",
        b"x-kv-",
        b"x-data-parallel-",
        // Which resource is meant, to servers behind a rewriting proxy.
        b"x-original-",
        b"x-rewrite-",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
        // Some servers read x_one as x-one, so it could be any of those above.
        || name.contains(&b'_')
        || name == ACCOUNT
        || name == CONTENT_TYPE
}

/// Whether only a trusted tenant may send a header: an engine orders requests, names them and finds their sessions by
/// these.
#[must_use]
pub fn is_of_trusted(name: &[u8]) -> bool {
    matches!(name, b"x-vllm-priority" | b"x-request-id" | b"x-session-id" | b"forwarded" | b"x-real-ip")
        || name.starts_with(b"x-forwarded-")
}

fn is_hidden(name: &[u8]) -> bool {
    matches!(
        name,
        // Hop-by-hop, and what this server writes itself.
        b"connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" | b"trailer" | b"te" | b"content-length"
        | b"proxy-authenticate" | b"proxy-connection" | b"date" | b"server"
        // This gateway's own name for the request, and what its answers depend on.
        | b"x-request-id" | b"request-id" | b"vary"
        // What a client's browser would do at the address of this gateway.
        | b"set-cookie" | b"set-cookie2" | b"location" | b"content-location" | b"refresh"
        | b"clear-site-data" | b"alt-svc" | b"strict-transport-security"
    ) || name.starts_with(b"access-control-")
}

/// A gateway's own, which workers do not say to clients.
fn is_own(name: &[u8]) -> bool {
    name.starts_with(b"x-cachefleet-")
}

/// Whether a `connection` header among `fields` names this one as of one hop.
fn is_of_hop<'a>(name: &[u8], mut fields: impl Iterator<Item = Field<'a>>) -> bool {
    fields.any(|(other, value)| {
        other == b"connection"
            && value.split(|byte| *byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(name))
    })
}

/// A worker's headers that a client may see: none of one hop, none that acts for this gateway's address. Of another
/// `gateway`, which has answered in place of a worker, also what it says itself.
pub fn to_client<'a>(
    fields: impl Iterator<Item = Field<'a>> + Clone,
    gateway: bool,
) -> impl Iterator<Item = Field<'a>> {
    fields
        .clone()
        .filter(move |(name, _)| !is_hidden(name) && (gateway || !is_own(name)) && !is_of_hop(name, fields.clone()))
}

/// A client's headers that a worker may see, and the worker's `key`, if any; `hooked` keeps `THRESHOLD_HOOK`.
#[must_use]
pub fn to_worker<'a>(fields: &[Field<'a>], key: &'a str, hooked: bool) -> Vec<(Cow<'a, str>, Cow<'a, str>)> {
    let all = fields.iter().copied();
    let kept = all.clone().filter(|(name, _)| !is_dropped(name) && !is_of_hop(name, all.clone()));
    let mut kept: Vec<_> = kept.map(|(name, value)| (text(name), text(value))).collect();
    if hooked && fields.contains(&(THRESHOLD_HOOK.0.as_bytes(), THRESHOLD_HOOK.1.as_bytes())) {
        kept.push((THRESHOLD_HOOK.0.into(), THRESHOLD_HOOK.1.into()));
    }
    // The body was parsed and is written anew, whatever its client has called it.
    let form = all.clone().find(|field| field.0 == CONTENT_TYPE).map(|field| text(field.1));
    kept.push(("content-type".into(), form.unwrap_or("application/json".into())));
    kept.extend(all.filter(|field| field.0 == ACCOUNT).map(|field| (ACCOUNT_HEADER.into(), text(field.1))));
    // Compressed answers would only have to be inflated here.
    kept.push(("accept-encoding".into(), "identity".into()));
    if !key.is_empty() {
        kept.push(("authorization".into(), format!("Bearer {key}").into()));
    }
    kept
}

/// Decoded as UTF-8, as it is encoded again; Latin-1 where it is not UTF-8.
fn text(value: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(value).map_or_else(|_| value.iter().copied().map(char::from).collect(), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_the_connection_names_is_of_one_hop() {
        let fields: [Field<'_>; 4] =
            [(b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"connection", b" other "), (b"other", b"2")];
        assert_eq!(to_client(fields.into_iter(), true).count(), 0);
        let names: Vec<_> = to_worker(&fields, "", true).into_iter().map(|field| field.0).collect();
        assert_eq!(names, ["content-type", "accept-encoding"]);
    }

    #[test]
    fn what_a_gateway_says_itself_goes_to_the_client_of_another_gateway_alone() {
        let fields: [Field<'_>; 4] =
            [(b"x-cachefleet-worker", b"w"), (b"x-request-id", b"1"), (b"retry-after", b"2"), (b"vary", b"Origin")];
        let shown = |gateway| to_client(fields.into_iter(), gateway).map(|field| field.0).collect::<Vec<_>>();
        assert_eq!(shown(false), [b"retry-after".as_slice()]);
        assert_eq!(shown(true), [b"x-cachefleet-worker".as_slice(), b"retry-after".as_slice()]);
    }

    #[test]
    fn a_value_that_is_not_utf_8_is_latin_1() {
        let fields: [Field<'_>; 2] = [(b"a", b"\xe9"), (b"b", "\u{e9}".as_bytes())];
        let sent = to_worker(&fields, "k", false);
        assert_eq!((&*sent[0].1, &*sent[1].1, &*sent[4].1), ("\u{e9}", "\u{e9}", "Bearer k"));
    }
}
