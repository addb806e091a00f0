//! A trace across three services that call each other in a chain, with real spans and an in-memory exporter.

use opentelemetry::trace::{
    SpanId, SpanKind, Status as SpanStatus, TraceContextExt as _, TracerProvider as _,
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tracing::Instrument as _;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;
use trunkline::{Context, InProcessNetwork, Node, OpenTelemetry, PollerContext, Status, block_on};

#[trunkline::service]
trait First {
    async fn first(&self) -> Result<String, Status>;
}

#[trunkline::service]
trait Second {
    #[blocking]
    async fn second(&self) -> Result<String, Status>;
}

#[trunkline::service]
trait Third {
    async fn third(&self, cx: &Context) -> Result<String, Status>;
    async fn fail(&self) -> Result<(), Status>;
}

/// Calls the second service through a local client, in a separate span.
struct One(SocketAddr);

impl First for One {
    async fn first(&self) -> Result<String, Status> {
        let poller = PollerContext::current().ok_or_else(|| Status::internal("no poller"))?;
        let channel = trunkline::LocalChannel::connect(&poller, self.0)?.with_interceptor(OpenTelemetry);
        trunkline::yield_now().await;
        SecondLocal::new(channel).second().await
    }
}

/// Calls the third service from a worker of the pool.
struct Two(ThirdClient);

impl Second for Two {
    async fn second(&self) -> Result<String, Status> {
        let text = self.0.third().await?;
        self.0.fail().await.expect_err("it fails");
        Ok(text)
    }
}

struct Three;

impl Third for Three {
    async fn third(&self, cx: &Context) -> Result<String, Status> {
        trunkline::yield_now().await;
        let trace = cx.trace().ok_or_else(|| Status::internal("no trace"))?;
        Ok(format!("{:032x}", trace.trace_id()))
    }

    async fn fail(&self) -> Result<(), Status> {
        Err(Status::internal("as it should"))
    }
}

/// Waits for `count` spans. The last spans end after the reply has arrived.
fn finished(exporter: &InMemorySpanExporter, count: usize) -> Vec<SpanData> {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let spans = exporter.get_finished_spans().unwrap();
        if spans.len() >= count || Instant::now() > limit {
            assert_eq!(spans.len(), count, "{spans:?}");
            return spans;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn three_services_have_one_trace_with_callers_as_parents() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();

    let network = InProcessNetwork::new();
    let node = || Node::builder().in_process(&network);
    let three = node().serve(ThirdServer::new(Three).interceptor(OpenTelemetry)).start().unwrap();
    let between = node().start().unwrap();
    let to_third = between.channel(three.local_address()).with_interceptor(OpenTelemetry);
    let two = SecondServer::new(Two(ThirdClient::new(to_third))).interceptor(OpenTelemetry);
    let two = node().serve(two).start().unwrap();
    let one =
        node().serve(FirstServer::new(One(two.local_address())).interceptor(OpenTelemetry)).start().unwrap();
    let caller = node().start().unwrap();
    let channel = caller.channel(one.local_address()).with_interceptor(OpenTelemetry);
    let client = FirstClient::new(channel);

    let root = tracing::info_span!("root");
    let trace_id = root.in_scope(|| block_on(client.first())).unwrap();
    drop(root);
    let spans = finished(&exporter, 9);
    let find = |name: &str, kind: SpanKind| {
        let found = spans.iter().filter(|span| span.name == name && span.span_kind == kind);
        let found = found.collect::<Vec<_>>();
        assert_eq!(found.len(), 1, "{name} {kind:?} in {spans:?}");
        found[0]
    };
    let mut parent = find("root", SpanKind::Internal);
    assert_eq!(parent.parent_span_id, SpanId::INVALID);
    for name in ["First/first", "Second/second", "Third/third"] {
        for kind in [SpanKind::Client, SpanKind::Server] {
            let span = find(name, kind.clone());
            assert_eq!(span.parent_span_id, parent.span_context.span_id(), "{name} {kind:?}");
            parent = span;
        }
    }
    for span in &spans {
        assert_eq!(
            format!("{:032x}", u128::from_be_bytes(span.span_context.trace_id().to_bytes())),
            trace_id
        );
    }
    let caller_of_fail = find("Second/second", SpanKind::Server).span_context.span_id();
    let failed = find("Third/fail", SpanKind::Client);
    assert_eq!(failed.parent_span_id, caller_of_fail);
    for span in [failed, find("Third/fail", SpanKind::Server)] {
        assert!(matches!(span.status, SpanStatus::Error { .. }), "{span:?}");
    }

    let attribute = |span: &SpanData, key: &str| {
        span.attributes.iter().find(|one| one.key.as_str() == key).map(|one| one.value.to_string())
    };
    for (key, of_success, of_failure) in [
        ("rpc.system.name", Some("trunkline"), Some("trunkline")),
        ("rpc.method", Some("Third/third"), Some("Third/fail")),
        ("rpc.response.status_code", Some("OK"), Some("INTERNAL")),
        ("error.type", None, Some("INTERNAL")),
    ] {
        for kind in [SpanKind::Client, SpanKind::Server] {
            let [success, failure] = ["Third/third", "Third/fail"].map(|name| find(name, kind.clone()));
            assert_eq!(attribute(success, key).as_deref(), of_success, "{key} {kind:?}");
            assert_eq!(attribute(failure, key).as_deref(), of_failure, "{key} {kind:?}");
        }
    }

    // A call outside any span starts a new trace.
    exporter.reset();
    assert_ne!(block_on(client.first()).unwrap(), trace_id);
    finished(&exporter, 8);

    // The call belongs to the span in which its stub is called.
    let span = tracing::info_span!("instrumented");
    for is_inside in [true, false] {
        exporter.reset();
        let call = async { client.first().await };
        let outcome = if is_inside {
            block_on(call.instrument(span.clone()))
        } else {
            block_on(client.first().instrument(span.clone()))
        };
        outcome.unwrap();
        let spans = finished(&exporter, 8);
        let made = spans.iter().find(|one| one.name == "First/first" && one.span_kind == SpanKind::Client);
        let parent = made.expect("the client's span").parent_span_id;
        let current = span.context().span().span_context().span_id();
        assert_eq!(parent == current, is_inside);
        assert_eq!(parent == SpanId::INVALID, !is_inside);
    }
}
