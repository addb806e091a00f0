//! Spans of calls for OpenTelemetry. A call has one span on the client and one on the server, connected by the call's trace
//! context.
//!
//! `tracing-opentelemetry` creates the identifiers. This module copies them between spans and metadata.

use crate::client::{ClientCall, ClientInterceptor};
use crate::observe::counted::CODES;
use crate::server::{ServerCall, ServerInterceptor};
use crate::status::{Code, Status};
use crate::wire::metadata::{Metadata, TraceContext};
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use std::str::FromStr as _;
use tracing::field::Empty;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// An interceptor that creates a `tracing` span for each call, and connects the spans of client and server through
/// `tracing-opentelemetry`. Requires the cargo feature `opentelemetry`.
///
/// Install it on channels, on servers, or on both. The client's span is a child of the current span, or of the calling
/// handler's trace if there is no current span. The server's span is a child of the client's span, and is the current span
/// of the handler. Both spans have level `INFO` and the attributes of OpenTelemetry's conventions for RPC. They contain no
/// values of arguments or metadata.
///
/// A call starts when the client's method is called, and its request may be sent before the future is polled. Therefore
/// write `async { client.greet(name).await }.instrument(span)`. In `client.greet(name).instrument(span)`, the method is
/// called outside the span.
///
/// ```no_run
/// use trunkline::{Node, OpenTelemetry, Status};
///
/// #[trunkline::service]
/// pub trait Greeter {
///     async fn greet(&self, name: String) -> Result<String, Status>;
/// }
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn greet(&self, name: String) -> Result<String, Status> { Ok(name) }
/// # }
///
/// let greeter = GreeterServer::new(Polite).interceptor(OpenTelemetry);
/// let server = Node::builder().listen("127.0.0.1:0").serve(greeter).start()?;
/// let node = Node::builder().listen("127.0.0.1:0").start()?;
/// let channel = node.channel(server.local_address()).with_interceptor(OpenTelemetry);
/// let client = GreeterClient::new(channel);
/// # Ok::<(), trunkline::StartError>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenTelemetry;

impl ClientInterceptor for OpenTelemetry {
    fn intercept(&self, call: &mut ClientCall) -> Result<(), Status> {
        let path = call.path().into_owned();
        let name = path.trim_start_matches('/');
        let span = info_span!(
            "trunkline_client",
            otel.name = name,
            otel.kind = "client",
            otel.status_code = Empty,
            error.type = Empty,
            rpc.system.name = "trunkline",
            rpc.method = name,
            rpc.response.status_code = Empty,
        );
        if Span::current().is_none() {
            set_parent(&span, call.metadata());
        }
        if let Some(trace) = trace_of(&span) {
            trace.put_into(call.metadata_mut());
        }
        call.on_end(move |outcome| end(&span, outcome, true));
        Ok(())
    }
}

impl ServerInterceptor for OpenTelemetry {
    fn intercept(&self, call: &mut ServerCall) -> Result<(), Status> {
        let path = call.path().into_owned();
        let name = path.trim_start_matches('/');
        let span = info_span!(
            parent: None,
            "trunkline_server",
            otel.name = name,
            otel.kind = "server",
            otel.status_code = Empty,
            error.type = Empty,
            rpc.system.name = "trunkline",
            rpc.method = name,
            rpc.response.status_code = Empty,
        );
        set_parent(&span, call.metadata());
        // Nested calls through channels without this interceptor then also become children of the span.
        if let Some(trace) = trace_of(&span) {
            trace.put_into(call.metadata_mut());
        }
        call.set_span(span.clone());
        call.on_end(move |outcome| end(&span, outcome, false));
        Ok(())
    }
}

/// Sets the parent of the span to the remote span in the metadata, if any.
fn set_parent(span: &Span, metadata: &Metadata) {
    let Some(trace) = TraceContext::of(metadata) else { return };
    let trace_id = TraceId::from_bytes(trace.trace_id().to_be_bytes());
    let span_id = SpanId::from_bytes(trace.span_id().to_be_bytes());
    let flags = TraceFlags::default().with_sampled(trace.is_sampled());
    // A malformed state does not invalidate the trace.
    let state = TraceState::from_str(trace.state()).unwrap_or_default();
    let parent = SpanContext::new(trace_id, span_id, flags, true, state);
    // Fails if the span is disabled or no layer exports it.
    let _no_layer = span.set_parent(opentelemetry::Context::new().with_remote_span_context(parent));
}

/// Returns the trace context for calls inside a span, or `None` if no layer exports the span.
fn trace_of(span: &Span) -> Option<TraceContext> {
    let context = span.context();
    let span = context.span();
    let of_span = span.span_context();
    let trace_id = u128::from_be_bytes(of_span.trace_id().to_bytes());
    let span_id = u64::from_be_bytes(of_span.span_id().to_bytes());
    let trace = TraceContext::new(trace_id, span_id, of_span.is_sampled())?;
    Some(trace.with_state(of_span.trace_state().header()))
}

/// Records the outcome of a call. On the client's span, all failures are errors.
fn end(span: &Span, outcome: Result<(), &Status>, is_client: bool) {
    let code = match outcome {
        Ok(()) => "OK",
        Err(status) if status.is_own_error() => CODES[0],
        Err(status) => CODES.get(usize::from(status.code().number())).copied().unwrap_or("_OTHER"),
    };
    span.record("rpc.response.status_code", code);
    if outcome.is_err_and(|status| is_client || is_fault(status)) {
        span.record("error.type", code);
        span.record("otel.status_code", "ERROR");
    }
}

/// Returns true if OpenTelemetry's conventions for gRPC classify the status as a server error. An error of the method's own
/// type is not a server error.
fn is_fault(status: &Status) -> bool {
    let is_fault = matches!(
        status.code(),
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    );
    is_fault && !status.is_own_error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Subscriber};

    /// True if a span has recorded an error.
    #[derive(Clone, Default)]
    struct HasError(Arc<AtomicBool>);

    impl Visit for HasError {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "otel.status_code" {
                assert_eq!(format!("{value:?}"), r#""ERROR""#);
                self.0.store(true, Ordering::Relaxed);
            }
        }
    }

    impl Subscriber for HasError {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, values: &Record<'_>) {
            values.record(&mut self.clone());
        }
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// Returns true for the client's span, and for the server's span, if the span is an error.
    fn are_errors(status: &Status) -> [bool; 2] {
        [true, false].map(|is_client| {
            let has_error = HasError::default();
            tracing::subscriber::with_default(has_error.clone(), || {
                let span = info_span!("call", otel.status_code = Empty, error.type = Empty);
                end(&span, Err(status), is_client);
            });
            has_error.0.load(Ordering::Relaxed)
        })
    }

    #[test]
    fn application_statuses_are_not_server_errors() {
        for code in [Code::Unknown, Code::Internal, Code::Unavailable, Code::DeadlineExceeded] {
            assert_eq!(are_errors(&Status::new(code, "it fails")), [true, true], "{code:?}");
        }
        for code in [Code::NotFound, Code::InvalidArgument, Code::ResourceExhausted] {
            assert_eq!(are_errors(&Status::new(code, "not so")), [true, false], "{code:?}");
        }
        assert_eq!(are_errors(&Status::of_own_error()), [true, false], "its code is Unknown");
    }
}
