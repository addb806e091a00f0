//! The messages of the test service, with the numbers of their public description.

/// No values.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// Bytes without a meaning.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Payload {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub body: prost::bytes::Bytes,
}

/// The status that the server is requested to return.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EchoStatus {
    /// Number of the code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The message.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A request for one payload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimpleRequest {
    /// Size of the payload of the response.
    #[prost(int32, tag = "2")]
    pub response_size: i32,
    /// A payload for the server.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// The status of the response.
    #[prost(message, optional, tag = "7")]
    pub response_status: Option<EchoStatus>,
}

/// One payload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimpleResponse {
    /// The payload.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// A payload of a client's stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InputRequest {
    /// The payload.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// The end of a client's stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InputResponse {
    /// Size of all payloads.
    #[prost(int32, tag = "1")]
    pub aggregated_payload_size: i32,
}

/// A response that the server is requested to send.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResponseParameters {
    /// Size of the payload.
    #[prost(int32, tag = "1")]
    pub size: i32,
    /// Time to wait before it, in microseconds.
    #[prost(int32, tag = "2")]
    pub interval_us: i32,
}

/// A request for payloads.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OutputRequest {
    /// The payloads.
    #[prost(message, repeated, tag = "2")]
    pub response_parameters: Vec<ResponseParameters>,
    /// A payload for the server.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// The status of the response.
    #[prost(message, optional, tag = "7")]
    pub response_status: Option<EchoStatus>,
}

/// A payload of a server's stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OutputResponse {
    /// The payload.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// Returns a payload of zeros.
#[must_use]
pub fn zeros(size: i32) -> Option<Payload> {
    Some(Payload { body: vec![0; usize::try_from(size).unwrap_or_default()].into() })
}

/// Returns the size of a payload, in bytes.
#[must_use]
pub fn size_of(payload: Option<&Payload>) -> usize {
    payload.map_or(0, |payload| payload.body.len())
}
