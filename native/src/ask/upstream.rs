//! The body that a worker is sent.
//!
//! Added are the tenant's salt and, where an API has them, requests for usage and token ids, which are taken out of the
//! answer again.

use super::members::quoted;
use super::{Endpoint, Members};
use bytes::Bytes;

/// What a worker's body has besides the client's members.
#[derive(Clone, Copy, Debug)]
pub struct Additions<'a> {
    /// The engine's name for the model; "" leaves the member as it is.
    pub model: &'a str,
    /// The tenant's; "" for none.
    pub salt: &'a str,
    /// A hit threshold of 0.
    pub threshold: bool,
    pub ids: bool,
    pub usage: bool,
}

/// The members of a worker's body.
#[must_use]
pub fn upstream(fields: &Members, endpoint: Endpoint, add: &Additions<'_>) -> Members {
    let mut fields = fields.clone();
    if !add.model.is_empty() {
        fields.set("model", quoted(add.model));
    }
    if endpoint == Endpoint::Responses {
        fields.set("store", Bytes::from_static(b"false"));
        fields.keep(|name| name != "previous_response_id"); // what it names is in the input already
    }
    if add.threshold {
        fields.set("cache_hit_threshold", Bytes::from_static(b"0"));
    }
    if !add.salt.is_empty() && endpoint.computes() && !endpoint.hears() {
        fields.set("cache_salt", quoted(add.salt));
    }
    if add.ids {
        fields.set("return_token_ids", Bytes::from_static(b"true"));
    }
    if add.usage && endpoint.hears() {
        fields.set("stream_include_usage", Bytes::from_static(b"\"true\"")); // a form has no objects
    } else if add.usage {
        want_usage(&mut fields);
    }
    fields
}

/// Ask for usage at the end of the stream; options that the engine will refuse stay unchanged.
fn want_usage(fields: &mut Members) {
    const NAME: &str = "stream_options";
    let Some(options) = fields.given(NAME) else {
        return fields.set(NAME, Bytes::from_static(b"{\"include_usage\":true}"));
    };
    if let Ok(Some(mut options)) = Members::of(options) {
        // vLLM sends running usage only together with usage, so the client would not have got it either.
        options.keep(|name| name != "continuous_usage_stats");
        options.set("include_usage", Bytes::from_static(b"true"));
        fields.set(NAME, options.encode());
    }
}
