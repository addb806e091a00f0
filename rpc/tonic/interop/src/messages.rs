//! The messages of the test service, with the field numbers of its public description.

/// An empty message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Empty {}

/// Arbitrary bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Payload {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub body: prost::bytes::Bytes,
}

/// The status to be returned by the server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EchoStatus {
    /// Status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// Status message.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A request for one payload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimpleRequest {
    /// Size of the response's payload, in bytes.
    #[prost(int32, tag = "2")]
    pub response_size: i32,
    /// Payload sent to the server.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// Status of the response.
    #[prost(message, optional, tag = "7")]
    pub response_status: Option<EchoStatus>,
}

/// A response with one payload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SimpleResponse {
    /// Payload of the response.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// A request in a client stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InputRequest {
    /// Payload of the request.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// The response to a client stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InputResponse {
    /// Total size of all payloads, in bytes.
    #[prost(int32, tag = "1")]
    pub aggregated_payload_size: i32,
}

/// Parameters of one response in a server stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ResponseParameters {
    /// Size of the payload, in bytes.
    #[prost(int32, tag = "1")]
    pub size: i32,
    /// Pause before the response, in microseconds.
    #[prost(int32, tag = "2")]
    pub interval_us: i32,
}

/// A request for a stream of payloads.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OutputRequest {
    /// Parameters of the responses.
    #[prost(message, repeated, tag = "2")]
    pub response_parameters: Vec<ResponseParameters>,
    /// Payload sent to the server.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// Status of the response.
    #[prost(message, optional, tag = "7")]
    pub response_status: Option<EchoStatus>,
}

/// A response in a server stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct OutputResponse {
    /// Payload of the response.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// Returns a payload of `size` zero bytes.
#[must_use]
pub fn zeros(size: i32) -> Option<Payload> {
    Some(Payload { body: vec![0; usize::try_from(size).unwrap_or_default()].into() })
}

/// Returns the size of a payload, in bytes.
#[must_use]
pub fn size_of(payload: Option<&Payload>) -> usize {
    payload.map_or(0, |payload| payload.body.len())
}
