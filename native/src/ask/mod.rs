//! What the gateway needs to know of a request's body, and the body that a worker is sent for it.

pub mod media;
pub mod members;
pub mod resumable;
pub mod retention;
pub mod text;
pub mod understand;
pub mod upstream;
pub mod values;

pub use members::Members;

/// An API that clients and workers speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    Chat,
    Completions,
    Responses,
    Messages,
    Embeddings,
    Rerank,
    Score,
    Classify,
    Pooling,
    CountTokens,
    Tokenize,
    Detokenize,
    Transcriptions,
    Translations,
}

impl Endpoint {
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" => Self::Responses,
            "/v1/messages" => Self::Messages,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/rerank" => Self::Rerank,
            "/v1/score" => Self::Score,
            "/classify" => Self::Classify,
            "/pooling" => Self::Pooling,
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/v1/messages/count_tokens" => Self::CountTokens,
            "/v1/audio/transcriptions" => Self::Transcriptions,
            "/v1/audio/translations" => Self::Translations,
            _ => return None,
        })
    }

    /// Whether its answers are chats or completions, which can have token ids, thresholds and several choices.
    #[must_use]
    pub fn completes(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// Whether an engine computes anything for it.
    #[must_use]
    pub fn computes(self) -> bool {
        !matches!(self, Self::CountTokens | Self::Tokenize | Self::Detokenize)
    }

    /// Whether it makes text of speech: its body is a form, and its stream is a chat's but for token ids.
    #[must_use]
    pub fn hears(self) -> bool {
        matches!(self, Self::Transcriptions | Self::Translations)
    }

    /// The members that list what a pooling model computes one by one; none of other endpoints.
    #[must_use]
    pub fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::Embeddings | Self::Classify | Self::Pooling => &["input"],
            Self::Rerank => &["documents"],
            Self::Score => &["data_1", "data_2", "queries", "documents", "items", "text_1", "text_2"],
            _ => &[],
        }
    }

    #[must_use]
    pub fn generates(self) -> bool {
        self.completes() || matches!(self, Self::Responses | Self::Messages)
    }
}

/// Why a body is refused, with status 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is no JSON object, or a name in it is no text.
    Unreadable,
    /// A member has a value that is not allowed.
    Member { message: String, name: &'static str },
}

impl Fault {
    fn member(name: &'static str, message: impl Into<String>) -> Self {
        Self::Member { message: message.into(), name }
    }
}
