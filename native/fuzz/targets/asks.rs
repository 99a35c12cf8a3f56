//! Clients' bodies: what is understood of one is understood again of what is made of it.

use bytes::Bytes;
use cachefleet_native::ask::understand::understand;
use cachefleet_native::ask::upstream::{Additions, upstream};
use cachefleet_native::ask::{Endpoint, Members, resumable, text};

const ENDPOINTS: [Endpoint; 12] = [
    Endpoint::Chat,
    Endpoint::Completions,
    Endpoint::Responses,
    Endpoint::Messages,
    Endpoint::Embeddings,
    Endpoint::Rerank,
    Endpoint::Score,
    Endpoint::Classify,
    Endpoint::Pooling,
    Endpoint::CountTokens,
    Endpoint::Tokenize,
    Endpoint::Detokenize,
];

pub fn any(data: &[u8]) {
    let body = Bytes::copy_from_slice(data);
    for endpoint in ENDPOINTS {
        let Ok((fields, facts)) = understand(&body, endpoint, true) else { continue };
        assert!(facts.max_tokens >= 1 && facts.prompts * facts.choices <= facts.prompts.max(128));
        let (size, seen) = text::visible(&fields, usize::MAX);
        assert_eq!(size, seen.len());
        assert!(resumable::is_plain(&fields, true) || !resumable::is_plain(&fields, false));
        let additions = Additions {
            model: &facts.model,
            salt: "s",
            threshold: endpoint.completes(),
            ids: facts.ids_wanted,
            usage: facts.stream && !facts.usage_asked,
        };
        let sent = upstream(&fields, endpoint, &additions);
        assert_eq!(Members::parse(&Bytes::from(sent.encode())), Ok(sent));
    }
}
