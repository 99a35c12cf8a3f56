//! Messages of `envoy.service.ext_proc.v3`, as far as a picker reads and writes them; protobuf skips other fields.
//!
//! They stand here, and not in a crate of all of Envoy's types, so that bodies are `Bytes`: pieces of what was received.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};

/// Modes in which a body is sent (`ProcessingMode.BodySendMode`).
pub mod mode {
    pub const NONE: i32 = 0;
    pub const BUFFERED: i32 = 2;
    pub const FULL_DUPLEX_STREAMED: i32 = 4;
}

/// `HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD`.
const OVERWRITE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub struct ProcessingRequest {
    #[prost(message, optional, tag = "8")]
    pub metadata_context: Option<Metadata>,
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
    #[prost(oneof = "Asked", tags = "2, 3, 4, 5, 6, 7")]
    pub request: Option<Asked>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Asked {
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    #[prost(message, tag = "6")]
    RequestTrailers(Nothing),
    #[prost(message, tag = "7")]
    ResponseTrailers(Nothing),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Nothing {}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct ProtocolConfiguration {
    #[prost(int32, tag = "1")]
    pub request_body_mode: i32,
    #[prost(int32, tag = "2")]
    pub response_body_mode: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct HttpHeaders {
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

impl HeaderValue {
    /// The value, in whichever field it is.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if self.raw_value.is_empty() { self.value.as_bytes() } else { &self.raw_value }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct HttpBody {
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// `envoy.config.core.v3.Metadata`.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(map = "string, message", tag = "1")]
    pub filter_metadata: HashMap<String, Struct>,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    #[prost(map = "string, message", tag = "1")]
    pub fields: HashMap<String, Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(oneof = "Kind", tags = "3, 5, 6")]
    pub kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "5")]
    Struct(Struct),
    #[prost(message, tag = "6")]
    List(ListValue),
}

#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

impl Struct {
    /// With one member.
    #[must_use]
    pub fn of(name: &str, kind: Kind) -> Self {
        Self { fields: HashMap::from([(name.to_owned(), Value { kind: Some(kind) })]) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct ProcessingResponse {
    #[prost(message, optional, tag = "8")]
    pub dynamic_metadata: Option<Struct>,
    #[prost(oneof = "Told", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub response: Option<Told>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Told {
    #[prost(message, tag = "1")]
    RequestHeaders(Response),
    #[prost(message, tag = "2")]
    ResponseHeaders(Response),
    #[prost(message, tag = "3")]
    RequestBody(Response),
    #[prost(message, tag = "4")]
    ResponseBody(Response),
    #[prost(message, tag = "5")]
    RequestTrailers(Nothing),
    #[prost(message, tag = "6")]
    ResponseTrailers(Nothing),
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

impl From<Told> for ProcessingResponse {
    fn from(told: Told) -> Self {
        Self { dynamic_metadata: None, response: Some(told) }
    }
}

/// `HeadersResponse` and `BodyResponse`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

impl Response {
    #[must_use]
    pub fn of(common: CommonResponse) -> Self {
        Self { response: Some(common) }
    }

    /// One that sets this body.
    #[must_use]
    pub fn body(mutation: Mutation) -> Self {
        Self::of(CommonResponse { body_mutation: Some(mutation.into()), ..CommonResponse::default() })
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct CommonResponse {
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
    #[prost(bool, tag = "5")]
    pub clear_route_cache: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct HeaderMutation {
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

impl HeaderMutation {
    /// Sets a header, whatever it is now.
    pub fn set(&mut self, key: &str, value: Bytes) {
        let header = Some(HeaderValue { key: key.to_owned(), value: String::new(), raw_value: value });
        self.set_headers.push(HeaderValueOption { header, append_action: OVERWRITE });
    }
}

#[derive(Clone, PartialEq, Message)]
pub struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    #[prost(int32, tag = "3")]
    pub append_action: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct BodyMutation {
    #[prost(oneof = "Mutation", tags = "1, 3")]
    pub mutation: Option<Mutation>,
}

impl From<Mutation> for BodyMutation {
    fn from(mutation: Mutation) -> Self {
        Self { mutation: Some(mutation) }
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Mutation {
    #[prost(bytes = "bytes", tag = "1")]
    Whole(Bytes),
    /// A piece, in the mode `FULL_DUPLEX_STREAMED`.
    #[prost(message, tag = "3")]
    Piece(HttpBody),
}

#[derive(Clone, PartialEq, Message)]
pub struct ImmediateResponse {
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
}

/// `grpc.health.v1.HealthCheckRequest`, whatever service it asks for.
pub type HealthCheckRequest = Nothing;

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HealthCheckResponse {
    /// 1: serving, 2: not serving.
    #[prost(int32, tag = "1")]
    pub status: i32,
}
