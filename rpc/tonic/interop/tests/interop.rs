//! The gRPC interoperability cases. Each case runs over TCP and three times over Trunkline: with handlers in a runtime,
//! with handlers on pollers, and through tonic's own channel type.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::CompressionEncoding;
use tonic::metadata::MetadataValue;
use tonic::service::{AxumBody, Routes};
use tonic::{Code, Request, Status};
use trunkline::{ClientCall, InProcessNetwork, Node, ServerCall};
use trunkline_testkit::{Process, fresh_ip, same_test};
use trunkline_tonic_interop::messages::{
    EchoStatus, Empty, InputRequest, OutputRequest, ResponseParameters, SimpleRequest, size_of, zeros,
};
use trunkline_tonic_interop::{
    ECHO_INITIAL, ECHO_TRAILING, HTTP_STATUS, Interop, REFUSED, REQUEST_ENCODING, TestServiceClient,
    Transport, routes,
};

const REQUEST_SIZES: [i32; 4] = [27_182, 8, 1_828, 45_904];
const RESPONSE_SIZES: [i32; 4] = [31_415, 9, 2_653, 58_979];
const SPECIAL: &str = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";

/// A server and a channel to it.
struct Fixture {
    service: Interop,
    transport: Transport,
    /// The Trunkline nodes: the client's first, then the server's.
    nodes: Vec<Node>,
}

impl Fixture {
    async fn tcp() -> Self {
        let mut server = tonic::transport::Server::builder();
        Self::tcp_served(|routes, incoming| {
            tokio::spawn(server.add_routes(routes).serve_with_incoming(incoming));
        })
        .await
    }

    async fn tcp_served(serve: impl FnOnce(Routes, TcpListenerStream)) -> Self {
        let service = Interop::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = all_routes(service.clone());
        serve(routes, TcpListenerStream::new(listener));
        let endpoint = tonic::transport::Endpoint::try_from(format!("http://{address}")).unwrap();
        let transport = Transport::Tcp(endpoint.connect().await.unwrap());
        Self { service, transport, nodes: Vec::new() }
    }

    async fn trunkline() -> Self {
        Self::served(|server| server.runtime(Handle::current())).await
    }

    async fn on_pollers() -> Self {
        Self::served(trunkline_tonic::Server::on_pollers).await
    }

    /// Connects over Trunkline through tonic's own channel type.
    async fn bridged() -> Self {
        let fixture = Self::trunkline().await;
        let Transport::Trunkline(channel) = fixture.transport else { unreachable!() };
        Self { transport: Transport::Tcp(channel.bridge()), ..fixture }
    }

    async fn served(serve: impl FnOnce(trunkline_tonic::Server) -> trunkline::stub::Service) -> Self {
        let service = Interop::default();
        let network = InProcessNetwork::new();
        let routes = all_routes(service.clone());
        let server = serve(trunkline_tonic::Server::new(routes).interceptor(refuse_forbidden));
        let server = Node::builder().in_process(&network).tokio(Handle::current()).serve(server);
        let server = server.start_async().await.unwrap();
        let node = Node::builder().in_process(&network).start_async().await.unwrap();
        let channel = trunkline_tonic::Channel::new(&node, server.local_address());
        Self { service, transport: Transport::Trunkline(channel), nodes: vec![node, server] }
    }

    fn client(&self) -> TestServiceClient<Transport> {
        TestServiceClient::new(self.transport.clone())
    }

    /// Returns true if the channel is a Trunkline channel, not bridged to tonic's type.
    fn is_trunkline(&self) -> bool {
        matches!(self.transport, Transport::Trunkline(_))
    }

    /// Waits until exactly `handlers` handlers hold their request streams.
    async fn until_running(&self, handlers: usize) {
        let wait = async {
            while self.service.running() != handlers {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
    }

    async fn end(self) {
        drop(self.transport);
        for node in self.nodes {
            node.shutdown_async().await;
        }
    }
}

/// Returns the routes of the service, health checks and reflection, inside a tower layer.
fn all_routes(service: Interop) -> Routes {
    let (_, health) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure();
    let reflection = reflection.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let routes = routes(service).add_service(health).add_service(reflection.build_v1().unwrap());
    let layer = tower::util::MapResponseLayer::new(|mut response: http::Response<AxumBody>| {
        response.headers_mut().insert("layer", http::HeaderValue::from_static("passed"));
        response
    });
    Routes::from(routes.into_axum_router().layer(layer))
}

fn refuse_forbidden(call: &mut ServerCall) -> Result<(), trunkline::Status> {
    match call.path().as_ref() {
        "/grpc.testing.TestService/Forbidden" => Err(trunkline::Status::permission_denied("forbidden")),
        _ => Ok(()),
    }
}

/// Creates a test for each combination of case and transport.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        mod over_trunkline {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = super::Fixture::trunkline().await;
                super::$case(&fixture).await;
                fixture.end().await;
            })*
        }
        mod on_pollers {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = super::Fixture::on_pollers().await;
                super::$case(&fixture).await;
                fixture.end().await;
            })*
        }
        mod bridged {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = super::Fixture::bridged().await;
                super::$case(&fixture).await;
                fixture.end().await;
            })*
        }
        mod over_tcp {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let fixture = super::Fixture::tcp().await;
                super::$case(&fixture).await;
                fixture.end().await;
            })*
        }
    };
}

cases![
    empty_unary,
    large_unary,
    client_streaming,
    server_streaming,
    ping_pong,
    empty_stream,
    cancel_after_begin,
    cancel_after_first_response,
    timeout_on_sleeping_server,
    status_code_and_message,
    special_status_message,
    unimplemented_method,
    unimplemented_service,
    custom_metadata,
    values_of_a_key_keep_their_order,
    metadata_never_steers_a_call,
    messages_over_a_limit_are_refused,
    health,
    reflection,
    gzip,
    layers,
    http_statuses_are_mapped,
    interceptors,
];

async fn empty_unary(fixture: &Fixture) {
    let response = fixture.client().empty_call(Empty {}).await.unwrap();
    assert_eq!(response.metadata().get("has-peer").unwrap(), "yes");
}

async fn large_unary(fixture: &Fixture) {
    let request =
        SimpleRequest { response_size: 314_159, payload: zeros(271_828), ..SimpleRequest::default() };
    let response = fixture.client().unary_call(request).await.unwrap().into_inner();
    assert_eq!(size_of(response.payload.as_ref()), 314_159);
}

async fn client_streaming(fixture: &Fixture) {
    let requests = REQUEST_SIZES.map(|size| InputRequest { payload: zeros(size) });
    let response = fixture.client().streaming_input_call(tokio_stream::iter(requests)).await.unwrap();
    assert_eq!(response.into_inner().aggregated_payload_size, 74_922);
}

fn parameters(size: i32) -> ResponseParameters {
    ResponseParameters { size, interval_us: 0 }
}

async fn server_streaming(fixture: &Fixture) {
    let request = OutputRequest {
        response_parameters: RESPONSE_SIZES.map(parameters).into(),
        ..OutputRequest::default()
    };
    let mut responses = fixture.client().streaming_output_call(request).await.unwrap().into_inner();
    for size in RESPONSE_SIZES {
        let response = responses.message().await.unwrap().unwrap();
        assert_eq!(size_of(response.payload.as_ref()), usize::try_from(size).unwrap());
    }
    assert_eq!(responses.message().await.unwrap(), None);
}

fn ask(request_size: i32, response_size: i32) -> OutputRequest {
    OutputRequest {
        response_parameters: vec![parameters(response_size)],
        payload: zeros(request_size),
        ..OutputRequest::default()
    }
}

async fn ping_pong(fixture: &Fixture) {
    let (sender, requests) = trunkline::stream::channel(1);
    let mut client = fixture.client();
    let mut responses = client.full_duplex_call(requests).await.unwrap().into_inner();
    for (request_size, response_size) in REQUEST_SIZES.into_iter().zip(RESPONSE_SIZES) {
        sender.send(ask(request_size, response_size)).await.unwrap();
        let response = responses.message().await.unwrap().unwrap();
        assert_eq!(size_of(response.payload.as_ref()), usize::try_from(response_size).unwrap());
    }
    sender.finish();
    assert_eq!(responses.message().await.unwrap(), None);
}

async fn empty_stream(fixture: &Fixture) {
    let requests = tokio_stream::empty::<OutputRequest>();
    let mut responses = fixture.client().full_duplex_call(requests).await.unwrap().into_inner();
    assert_eq!(responses.message().await.unwrap(), None);
}

async fn cancel_after_begin(fixture: &Fixture) {
    let mut client = fixture.client();
    let call = tokio::spawn(async move { client.streaming_input_call(tokio_stream::pending()).await });
    fixture.until_running(1).await;
    call.abort();
    fixture.until_running(0).await;
}

async fn cancel_after_first_response(fixture: &Fixture) {
    let mut client = fixture.client();
    let requests = tokio_stream::once(ask(27_182, 31_415)).chain(tokio_stream::pending());
    let mut responses = client.full_duplex_call(requests).await.unwrap().into_inner();
    let response = responses.message().await.unwrap().unwrap();
    assert_eq!(size_of(response.payload.as_ref()), 31_415);
    assert_eq!(fixture.service.running(), 1);
    drop(responses);
    // tonic's own transport keeps the exchange until the end of the request stream.
    if fixture.is_trunkline() {
        fixture.until_running(0).await;
    }
}

async fn timeout_on_sleeping_server(fixture: &Fixture) {
    let sleeping = OutputRequest {
        response_parameters: vec![ResponseParameters { size: 1, interval_us: i32::MAX }],
        ..OutputRequest::default()
    };
    let is_expected = |code| match code {
        Code::DeadlineExceeded => !fixture.nodes.is_empty(),
        // tonic's channel also has a timer, which may end the call first.
        code => code == Code::Cancelled && !fixture.is_trunkline(),
    };
    let mut client = fixture.client();
    // On a loaded machine, the headers may arrive after the time limit. Repeat the call until they arrive earlier.
    let begins = async {
        loop {
            let items = tokio_stream::once(sleeping.clone()).chain(tokio_stream::pending());
            let mut request = Request::new(items);
            request.set_timeout(Duration::from_millis(300));
            match client.full_duplex_call(request).await {
                Ok(responses) => return responses.into_inner(),
                Err(status) => assert!(is_expected(status.code()), "{status:?}"),
            }
        }
    };
    let mut responses = tokio::time::timeout(Duration::from_secs(60), begins).await.unwrap();
    // tonic's own transport does not check the time limit after it has received headers.
    if fixture.is_trunkline() {
        let outcome = tokio::time::timeout(Duration::from_secs(60), responses.message()).await.unwrap();
        assert_eq!(outcome.unwrap_err().code(), Code::DeadlineExceeded);
        fixture.until_running(0).await;
    }
    let mut request = Request::new(tokio_stream::pending());
    request.set_timeout(Duration::from_millis(300));
    let status = client.streaming_input_call(request).await.unwrap_err();
    assert!(is_expected(status.code()), "{status:?}");
}

async fn status_code_and_message(fixture: &Fixture) {
    expect_status(fixture, "test status message").await;
}

async fn special_status_message(fixture: &Fixture) {
    expect_status(fixture, SPECIAL).await;
}

async fn expect_status(fixture: &Fixture, message: &str) {
    let status = Some(EchoStatus { code: 2, message: message.to_owned() });
    let request = SimpleRequest { response_status: status.clone(), ..SimpleRequest::default() };
    let unary = fixture.client().unary_call(request).await.unwrap_err();
    let request = OutputRequest { response_status: status, ..OutputRequest::default() };
    let requests = tokio_stream::once(request);
    let mut responses = fixture.client().full_duplex_call(requests).await.unwrap().into_inner();
    let duplex = responses.message().await.unwrap_err();
    for status in [unary, duplex] {
        assert_eq!((status.code(), status.message()), (Code::Unknown, message));
        assert_eq!(status.details(), message.as_bytes());
    }
}

/// Calls a method that the generated client lacks.
async fn call(fixture: &Fixture, request: Request<Empty>, path: &'static str) -> Status {
    let mut client = tonic::client::Grpc::new(fixture.transport.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<Empty, Empty>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    client.unary(request, path, codec).await.unwrap_err()
}

async fn unimplemented_method(fixture: &Fixture) {
    let status = call(fixture, Request::new(Empty {}), "/grpc.testing.TestService/UnimplementedCall").await;
    assert_eq!(status.code(), Code::Unimplemented);
}

async fn unimplemented_service(fixture: &Fixture) {
    let status =
        call(fixture, Request::new(Empty {}), "/grpc.testing.UnimplementedService/UnimplementedCall").await;
    assert_eq!(status.code(), Code::Unimplemented);
}

async fn custom_metadata(fixture: &Fixture) {
    let mut request = Request::new(SimpleRequest { response_size: 9, ..SimpleRequest::default() });
    let trailing = [0xab, 0xab, 0xab];
    request.metadata_mut().insert(ECHO_INITIAL, "test_initial_metadata_value".parse().unwrap());
    request.metadata_mut().insert_bin(ECHO_TRAILING, MetadataValue::from_bytes(&trailing));
    let response = fixture.client().unary_call(request).await.unwrap();
    // In a unary response, tonic merges the trailers into the headers.
    assert_eq!(response.metadata().get(ECHO_INITIAL).unwrap(), "test_initial_metadata_value");
    let echoed = response.metadata().get_bin(ECHO_TRAILING).unwrap().to_bytes().unwrap();
    assert_eq!(echoed, &trailing[..]);
}

async fn values_of_a_key_keep_their_order(fixture: &Fixture) {
    let mut request = Request::new(Empty {});
    let bytes = std::iter::once(b'\t').chain(b' '..=b'~').chain(0x80..=0xff).collect::<Vec<_>>();
    // In HTTP, leading and trailing whitespace is not part of a value.
    let opaque = MetadataValue::try_from([b"(", &bytes[..], b")"].concat()).unwrap();
    request.metadata_mut().append("tag", opaque.clone());
    for tag in ["blue", "", "round"] {
        request.metadata_mut().append("tag", tag.parse().unwrap());
        request.metadata_mut().append_bin("tag-bin", MetadataValue::from_bytes(tag.as_bytes()));
    }
    let response = fixture.client().empty_call(request).await.unwrap();
    let tags = response.metadata().get_all("tag").iter().collect::<Vec<_>>();
    assert_eq!(tags[0], opaque);
    assert_eq!(tags[1..], ["blue", "", "round"]);
    let tags = response.metadata().get_all_bin("tag-bin").iter().map(|tag| tag.to_bytes().unwrap());
    assert_eq!(tags.collect::<Vec<_>>(), ["blue", "", "round"]);
}

async fn metadata_never_steers_a_call(fixture: &Fixture) {
    let other = "/grpc.testing.TestService/EmptyCall";
    for key in
        ["grpc-path", "grpc-method", "trunkline-path", "trunkline-order", "path", "x-http-method-override"]
    {
        let mut request = Request::new(SimpleRequest { response_size: 9, ..SimpleRequest::default() });
        request.metadata_mut().insert(key, other.parse().unwrap());
        let response = fixture.client().unary_call(request).await.unwrap().into_inner();
        assert_eq!(size_of(response.payload.as_ref()), 9, "{key}");
        if fixture.is_trunkline() {
            // An interceptor on the client refuses the path of the call.
            let mut request = Request::new(Empty {});
            request.metadata_mut().insert(key, other.parse().unwrap());
            let status = call(fixture, request, "/grpc.testing.TestService/Forbidden").await;
            assert_eq!(status.code(), Code::PermissionDenied, "{key}");
        }
    }
}

async fn messages_over_a_limit_are_refused(fixture: &Fixture) {
    let request = SimpleRequest { response_size: 100, ..SimpleRequest::default() };
    let mut client = fixture.client().max_decoding_message_size(100);
    assert_eq!(client.unary_call(request.clone()).await.unwrap_err().code(), Code::OutOfRange);
    // The request's body fails. The caller gets the body's error, not the status of a cancelled call.
    let mut client = fixture.client().max_encoding_message_size(1);
    let status = client.unary_call(request).await.unwrap_err();
    if fixture.is_trunkline() {
        assert_eq!(status.code(), Code::OutOfRange);
    }
}

async fn health(fixture: &Fixture) {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let mut client = HealthClient::new(fixture.transport.clone());
    let checked = client.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    let mut watched = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!((checked.status, watched.message().await.unwrap()), (1, Some(checked)));
}

async fn reflection(fixture: &Fixture) {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
    let questions = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol("grpc.health.v1.Health".into()),
    ];
    let requests = questions
        .map(|question| ServerReflectionRequest { message_request: Some(question), ..Default::default() });
    let mut client = ServerReflectionClient::new(fixture.transport.clone());
    let responses = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let answers = responses.map(|response: Result<ServerReflectionResponse, Status>| {
        response.unwrap().message_response.unwrap()
    });
    let answers = answers.collect::<Vec<_>>().await;
    let [MessageResponse::ListServicesResponse(list), MessageResponse::FileDescriptorResponse(file)] =
        &answers[..]
    else {
        panic!("{answers:?}");
    };
    let mut services = list.service.iter().map(|service| service.name.as_str()).collect::<Vec<_>>();
    services.sort_unstable();
    assert_eq!(services, ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]);
    assert_eq!(file.file_descriptor_proto.len(), 1);
}

async fn gzip(fixture: &Fixture) {
    let gzip = CompressionEncoding::Gzip;
    let mut client = fixture.client().send_compressed(gzip).accept_compressed(gzip);
    let request =
        SimpleRequest { response_size: 314_159, payload: zeros(271_828), ..SimpleRequest::default() };
    let response = client.unary_call(request).await.unwrap();
    for header in ["grpc-encoding", REQUEST_ENCODING] {
        assert_eq!(response.metadata().get(header).unwrap(), "gzip", "{header}");
    }
    assert_eq!(size_of(response.into_inner().payload.as_ref()), 314_159);
}

async fn layers(fixture: &Fixture) {
    let adds_tag = |mut request: http::Request<tonic::body::Body>| {
        request.headers_mut().insert("tag", http::HeaderValue::from_static("of a layer"));
        request
    };
    let transport = tower::ServiceBuilder::new().map_request(adds_tag).service(fixture.transport.clone());
    let response = TestServiceClient::new(transport).empty_call(Empty {}).await.unwrap();
    assert_eq!(response.metadata().get("tag").unwrap(), "of a layer");
    assert_eq!(response.metadata().get("layer").unwrap(), "passed");
}

/// tonic's own server applies the same layers. The first layer is the outermost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tower_layers_are_applied_in_order() {
    let tags = |tag: &'static str| {
        tower::util::MapRequestLayer::new(move |mut request: http::Request<tonic::body::Body>| {
            request.headers_mut().append("tag", http::HeaderValue::from_static(tag));
            request
        })
    };
    let sheds = || tower::ServiceBuilder::new().buffer(8).load_shed().concurrency_limit(1);
    for fixture in [
        Fixture::tcp_served(|routes, incoming| {
            let server = tonic::transport::Server::builder().layer(tags("first")).layer(tags("second"));
            tokio::spawn(server.layer(sheds()).add_routes(routes).serve_with_incoming(incoming));
        })
        .await,
        Fixture::served(|server| {
            let server = server.layer(tags("first")).layer(tags("second")).layer(sheds());
            server.runtime(Handle::current())
        })
        .await,
        Fixture::served(|server| {
            server.layer(tags("first")).layer(tags("second")).layer(sheds()).on_pollers()
        })
        .await,
    ] {
        let mut client = fixture.client();
        let response = client.empty_call(Empty {}).await.unwrap();
        let tags = response.metadata().get_all("tag").iter().collect::<Vec<_>>();
        assert_eq!(tags, ["first", "second"]);

        let (sender, requests) = trunkline::stream::channel::<InputRequest>(1);
        let mut other = fixture.client();
        let call = tokio::spawn(async move { other.streaming_input_call(requests).await });
        fixture.until_running(1).await;
        let status = client.empty_call(Empty {}).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        sender.finish();
        call.await.unwrap().unwrap();
        client.empty_call(Empty {}).await.unwrap();
        fixture.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_errors_of_layers_become_statuses() {
    let limit = tower::timeout::TimeoutLayer::new(Duration::ZERO);
    let fixture = Fixture::served(|server| server.layer(limit).runtime(Handle::current())).await;
    let status = fixture.client().streaming_input_call(tokio_stream::pending()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, "request timed out"));
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unary_response_is_one_message() {
    for fixture in [Fixture::trunkline().await, Fixture::on_pollers().await] {
        let sent =
            |fixture: &Fixture| fixture.nodes[1].report().traffic.iter().map(|lane| lane.sent).sum::<u64>();
        for response_size in [65_536, 65_536, 1 << 20] {
            let before = sent(&fixture);
            let request = SimpleRequest { response_size, ..SimpleRequest::default() };
            fixture.client().unary_call(request).await.unwrap();
            assert_eq!(sent(&fixture), before + 1);
        }
        fixture.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_time_limit_applies_until_response_begins() {
    let limit = Duration::ZERO;
    for fixture in [
        Fixture::served(|server| server.timeout(limit).runtime(Handle::current())).await,
        Fixture::served(|server| server.timeout(limit).on_pollers()).await,
    ] {
        let mut client = fixture.client();
        let status = client.streaming_input_call(tokio_stream::pending()).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        fixture.until_running(0).await;
        // This response begins immediately.
        let parameters = ResponseParameters { interval_us: 5_000, ..parameters(1) };
        let request = OutputRequest { response_parameters: vec![parameters], ..OutputRequest::default() };
        let mut responses = client.streaming_output_call(request).await.unwrap().into_inner();
        responses.message().await.unwrap().unwrap();
        fixture.end().await;
    }
}

/// The mapping is the table in gRPC's http-grpc-status-mapping.md.
async fn http_statuses_are_mapped(fixture: &Fixture) {
    let ask = async |response: &str| {
        let mut request = Request::new(Empty {});
        request.metadata_mut().insert(HTTP_STATUS, response.parse().unwrap());
        let status = fixture.client().empty_call(request).await.unwrap_err().code();
        let mut request = Request::new(OutputRequest::default());
        request.metadata_mut().insert(HTTP_STATUS, response.parse().unwrap());
        let of_stream = match fixture.client().streaming_output_call(request).await {
            Ok(stream) => stream.into_inner().message().await.unwrap_err(),
            Err(status) => status,
        };
        assert_eq!(of_stream.code(), status, "{response}");
        status
    };
    for (http, code) in [
        ("400", Code::Internal),
        ("401", Code::Unauthenticated),
        ("403", Code::PermissionDenied),
        ("404", Code::Unimplemented),
        ("429", Code::Unavailable),
        ("502", Code::Unavailable),
        ("503", Code::Unavailable),
        ("504", Code::Unavailable),
        ("200", Code::Unknown),
        ("302", Code::Unknown),
        ("409", Code::Unknown),
        ("500", Code::Unknown),
    ] {
        assert_eq!(ask(http).await, code, "{http}");
        // A gRPC status takes precedence, in headers and in trailers.
        for place in ["headers", "trailers"] {
            assert_eq!(ask(&format!("{http} {place}")).await, Code::NotFound, "{http} {place}");
        }
        // Over HTTP/2, tonic reads the page as a message.
        if fixture.is_trunkline() && http != "200" {
            assert_eq!(ask(&format!("{http} page")).await, code, "{http} with a page");
            assert_eq!(ask(&format!("{http} page trailers")).await, Code::NotFound, "{http} with a page");
        }
    }
}

async fn interceptors(fixture: &Fixture) {
    let with = |header: &'static str| {
        let adds_header = move |mut request: Request<()>| {
            request.metadata_mut().insert(header, "of an interceptor".parse().unwrap());
            Ok(request)
        };
        TestServiceClient::with_interceptor(fixture.transport.clone(), adds_header)
    };
    let response = with("tag").empty_call(Empty {}).await.unwrap();
    assert_eq!(response.metadata().get("tag").unwrap(), "of an interceptor");
    let status = with(REFUSED).empty_call(Empty {}).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "the interceptor refuses it"));
}

/// Numbers of calls by path.
type Counts = Arc<Mutex<BTreeMap<String, u32>>>;

fn count(counts: &Counts, path: &str) {
    *counts.lock().unwrap().entry(path.to_owned()).or_default() += 1;
}

/// Trunkline's interceptors count calls by method, and refuse them before they reach tonic.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interceptors_of_nodes_see_paths() {
    let (called, served) = (Counts::default(), Counts::default());
    let network = InProcessNetwork::new();
    let counts = Arc::clone(&served);
    let server = trunkline_tonic::Server::new(routes(Interop::default()))
        .interceptor(move |call: &mut ServerCall| {
            count(&counts, &call.path());
            let mut metadata = trunkline::Metadata::new();
            metadata.insert("node", "counted")?;
            call.context().set_initial_metadata(metadata);
            Ok(())
        })
        .runtime(Handle::current());
    let server = Node::builder().in_process(&network).serve(server).start_async().await.unwrap();
    let node = Node::builder().in_process(&network).start_async().await.unwrap();
    let counts = Arc::clone(&called);
    let channel = node.channel(server.local_address()).with_interceptor(move |call: &mut ClientCall| {
        count(&counts, &call.path());
        Ok(())
    });
    // This is not a `Transport`, because tonic's interceptor must wrap the channel itself.
    let channel = trunkline_tonic::Channel::from(channel);
    let mut client = TestServiceClient::with_interceptor(channel, Ok);
    for _ in 0..2 {
        let response = client.empty_call(Empty {}).await.unwrap();
        assert_eq!(response.metadata().get("node").unwrap(), "counted");
    }
    client.unary_call(SimpleRequest::default()).await.unwrap();
    let path = |method| format!("/grpc.testing.TestService/{method}");
    let expected = BTreeMap::from([(path("EmptyCall"), 2), (path("UnaryCall"), 1)]);
    assert_eq!((&*called.lock().unwrap(), &*served.lock().unwrap()), (&expected, &expected));
    node.shutdown_async().await;
    server.shutdown_async().await;
}

/// The limits apply to the number of running calls and to the size of messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_by_path_refuse_calls() {
    let input = "/grpc.testing.TestService/StreamingInputCall";
    let limited = |server: trunkline_tonic::Server| {
        let server = server.limit(input, 1).limit("/grpc.testing.TestService", 2);
        let server = server.message_limit("/grpc.testing.TestService/UnaryCall", 1000);
        server.runtime(Handle::current())
    };
    let fixture = Fixture::served(limited).await;
    let start = || {
        let mut client = fixture.client();
        tokio::spawn(async move { client.streaming_input_call(tokio_stream::pending()).await })
    };
    let mut client = fixture.client();
    let first = start();
    fixture.until_running(1).await;
    let status = client.streaming_input_call(tokio_stream::empty()).await.unwrap_err();
    let expected = "runs 1 call of /grpc.testing.TestService/StreamingInputCall, which is its limit";
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().ends_with(expected), "{status:?}");
    // Other methods run, up to the limit of the service.
    client.empty_call(Empty {}).await.unwrap();
    let (sender, requests) = trunkline::stream::channel::<OutputRequest>(1);
    let responses = client.full_duplex_call(requests).await.unwrap();
    let status = client.empty_call(Empty {}).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("2 calls of /grpc.testing.TestService,"), "{status:?}");
    drop((sender, responses));
    first.abort();
    fixture.until_running(0).await;
    // The caller may see the end of a call before or after its handler is dropped.
    let second = async {
        while let Err(status) = client.streaming_input_call(tokio_stream::empty()).await {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), second).await.unwrap();

    let request = |size| SimpleRequest { payload: zeros(size), ..SimpleRequest::default() };
    client.unary_call(request(900)).await.unwrap();
    for size in [1000, 1 << 20] {
        let status = client.unary_call(request(size)).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    }
    fixture.end().await;
}

/// Waits until `running` calls run in the service that carries exchanges.
async fn until_exchanges(server: &Node, running: u64) {
    let exchanges = || {
        let rows = server.report().served;
        rows.iter().filter(|row| row.service == "trunkline.grpc").map(|row| row.running).sum::<u64>()
    };
    let wait = async {
        while exchanges() != running {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
}

/// A cancelled call counts until its handler has ended. The client cannot end the handler earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_count_until_their_handlers_end() {
    let (entered, mut entries) = tokio::sync::mpsc::unbounded_channel();
    let (gate, open) = std::sync::mpsc::channel::<()>();
    let open = Arc::new(Mutex::new(open));
    let layer = tower::util::MapRequestLayer::new(move |request: http::Request<AxumBody>| {
        entered.send(()).unwrap();
        // Block the thread, so that the handler cannot be dropped at an `await`.
        tokio::task::block_in_place(|| _ = open.lock().unwrap().recv());
        request
    });
    let routes = Routes::from(routes(Interop::default()).into_axum_router().layer(layer));
    let (network, path) = (InProcessNetwork::new(), "/grpc.testing.TestService/EmptyCall");
    let service = trunkline_tonic::Server::new(routes).limit(path, 1).runtime(Handle::current());
    let server = Node::builder().in_process(&network).serve(service).start_async().await.unwrap();
    let node = Node::builder().in_process(&network).start_async().await.unwrap();
    let client = TestServiceClient::new(trunkline_tonic::Channel::new(&node, server.local_address()));
    let call = || {
        let (mut client, mut request) = (client.clone(), Request::new(Empty {}));
        // If the call were admitted, it would wait until the gate opens.
        request.set_timeout(Duration::from_secs(60));
        async move { client.empty_call(request).await }
    };
    let cancelled = tokio::spawn(call());
    entries.recv().await.unwrap();
    cancelled.abort();
    until_exchanges(&server, 0).await;
    for _ in 0..3 {
        assert_eq!(call().await.unwrap_err().code(), Code::ResourceExhausted);
    }
    drop(gate);
    let admitted = async {
        while let Err(status) = call().await {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), admitted).await.unwrap();
    node.shutdown_async().await;
    server.shutdown_async().await;
}

/// Calls fail if the runtime ends before their tasks have begun. Later calls fail too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_with_runtime_of_their_service() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let network = InProcessNetwork::new();
    let service = trunkline_tonic::Server::new(routes(Interop::default())).runtime(runtime.handle().clone());
    let server = Node::builder().in_process(&network).serve(service).start_async().await.unwrap();
    let node = Node::builder().in_process(&network).start_async().await.unwrap();
    let client = TestServiceClient::new(trunkline_tonic::Channel::new(&node, server.local_address()));
    let call = || {
        let mut client = client.clone();
        let mut request = Request::new(Empty {});
        request.set_timeout(Duration::from_secs(600));
        tokio::spawn(async move { client.empty_call(request).await })
    };
    let calls = (0..3).map(|_| call()).collect::<Vec<_>>();
    until_exchanges(&server, 3).await;
    runtime.shutdown_background();
    for call in calls.into_iter().chain([call()]) {
        let outcome = tokio::time::timeout(Duration::from_secs(60), call).await.unwrap();
        assert_eq!(outcome.unwrap().unwrap_err().code(), Code::Unavailable);
    }
    node.shutdown_async().await;
    server.shutdown_async().await;
}

/// A body that is available immediately is sent in pieces if it exceeds a node's `max_message_bytes`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_above_max_message_size_are_sent_in_pieces() {
    for (of_client, of_server) in [(1 << 20, 64 << 20), (64 << 20, 1 << 20)] {
        let network = InProcessNetwork::new();
        let builder = |bytes| Node::builder().in_process(&network).max_message_bytes(bytes);
        let service = trunkline_tonic::Server::new(routes(Interop::default())).runtime(Handle::current());
        let server = builder(of_server).serve(service).start_async().await.unwrap();
        let node = builder(of_client).start_async().await.unwrap();
        let channel = trunkline_tonic::Channel::new(&node, server.local_address());
        let mut client = TestServiceClient::new(channel);
        let request =
            SimpleRequest { response_size: 2 << 20, payload: zeros(2 << 20), ..SimpleRequest::default() };
        for _ in 0..2 {
            let response = client.unary_call(request.clone()).await.unwrap().into_inner();
            assert_eq!(size_of(response.payload.as_ref()), 2 << 20);
        }
        // After the first refusal, the channel no longer sends such bodies whole.
        let called = node.report().called;
        let whole = called.iter().find(|row| row.method == "call_whole").unwrap();
        assert_eq!(whole.calls, 1, "{whole:?}");
        // Metadata that is too large does not cause a retry in pieces.
        let mut request =
            Request::new(SimpleRequest { payload: zeros(512 << 10), ..SimpleRequest::default() });
        request.metadata_mut().insert("long", "x".repeat(10_000).parse().unwrap());
        assert_eq!(client.unary_call(request).await.unwrap_err().code(), Code::ResourceExhausted);
        node.shutdown_async().await;
        server.shutdown_async().await;
    }
}

/// The report contains the limits by path, and a row for each path of which a call has succeeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_contain_calls_and_limits_by_path() {
    let service = "/grpc.testing.TestService";
    let limited = |server: trunkline_tonic::Server| server.limit(service, 7);
    for fixture in [
        Fixture::served(|server| limited(server).runtime(Handle::current())).await,
        Fixture::served(|server| limited(server).on_pollers()).await,
    ] {
        let mut client = fixture.client();
        client.unary_call(SimpleRequest::default()).await.unwrap();
        let status = Some(EchoStatus { code: 5, message: "no such row".to_owned() });
        let request = SimpleRequest { response_status: status, ..SimpleRequest::default() };
        client.unary_call(request).await.unwrap_err();
        let request = SimpleRequest { response_size: -1, ..SimpleRequest::default() };
        client.unary_call(request).await.unwrap_err();
        // Unknown paths do not get rows.
        for path in ["/grpc.testing.TestService/UnimplementedCall", "/made.Up/Call"] {
            assert_eq!(call(&fixture, Request::new(Empty {}), path).await.code(), Code::Unimplemented);
        }
        let ended = client.full_duplex_call(tokio_stream::empty::<OutputRequest>()).await.unwrap();
        assert_eq!(ended.into_inner().message().await.unwrap(), None);
        let (sender, requests) = trunkline::stream::channel::<OutputRequest>(1);
        until_exchanges(&fixture.nodes[1], 0).await;
        let responses = client.full_duplex_call(requests).await.unwrap();
        let report = fixture.nodes[1].report();
        let rows = report.served.iter().filter(|row| row.service.starts_with('/')).map(|row| {
            let failed = row.failed.iter().map(|failed| format!("{} {}", failed.code, failed.calls));
            (row.service, row.method, row.calls, row.running, failed.collect::<Vec<_>>().join(", "))
        });
        let expected = [
            (service, "FullDuplexCall", 1, 1, String::new()),
            (service, "UnaryCall", 3, 0, "NOT_FOUND 1, INTERNAL 1".to_owned()),
        ];
        assert_eq!(rows.collect::<Vec<_>>(), expected);
        let [limit] = &report.limits[..] else { panic!("{:?}", report.limits) };
        assert_eq!((&*limit.name, limit.running, limit.limit, limit.refused), (service, 1, 7, 0));
        drop((sender, responses));
        fixture.end().await;
    }
}

#[tokio::test]
async fn malformed_limit_stops_start() {
    for (path, most) in [("grpc.testing.TestService", 1), ("/grpc.testing.TestService", 0)] {
        let server = trunkline_tonic::Server::new(routes(Interop::default())).limit(path, most);
        let node = Node::builder().in_process(&InProcessNetwork::new());
        let error = node.serve(server.runtime(Handle::current())).start_async().await.unwrap_err();
        assert!(format!("{error:?}").contains("limit of"), "{error:?}");
    }
}

/// Failures of Trunkline and of a handler map to gRPC codes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_map_to_status_codes() {
    let mut fixture = Fixture::trunkline().await;
    let request = SimpleRequest { response_size: -1, ..SimpleRequest::default() };
    let status = fixture.client().unary_call(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().starts_with("/grpc.testing.TestService/UnaryCall at "), "{status:?}");
    assert!(status.message().ends_with("the handler panicked"), "{status:?}");
    let status = call(&fixture, Request::new(Empty {}), "/grpc.testing.TestService/Forbidden").await;
    assert_eq!(status.code(), Code::PermissionDenied);
    fixture.client().empty_call(Empty {}).await.unwrap();

    let (_sender, requests) = trunkline::stream::channel::<OutputRequest>(1);
    let mut responses = fixture.client().full_duplex_call(requests).await.unwrap().into_inner();
    fixture.nodes.pop().unwrap().shutdown_async().await;
    let status = responses.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("/grpc.testing.TestService/FullDuplexCall at "), "{status:?}");
    let status = fixture.client().full_duplex_call(tokio_stream::pending()).await.unwrap_err();
    assert!(status.message().starts_with("/grpc.testing.TestService/FullDuplexCall at "), "{status:?}");
    fixture.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_senders_are_errors_in_both_directions() {
    let dropped = "the sender of the stream was dropped before it finished";
    for fixture in [Fixture::trunkline().await, Fixture::on_pollers().await] {
        let mut client = fixture.client();
        let failed = |status: Status| {
            assert_eq!(status.code(), Code::Internal, "{status:?}");
            assert!(status.message().contains(dropped), "{status:?}");
        };
        // Drop the sender before the call, and then after the first exchange of messages.
        let (sender, requests) = trunkline::stream::channel(1);
        sender.try_send(InputRequest { payload: zeros(1) }).unwrap();
        drop(sender);
        failed(client.streaming_input_call(requests).await.unwrap_err());
        let (sender, requests) = trunkline::stream::channel(1);
        let mut responses = client.full_duplex_call(requests).await.unwrap().into_inner();
        sender.send(ask(1, 1)).await.unwrap();
        responses.message().await.unwrap().unwrap();
        drop(sender);
        failed(responses.message().await.unwrap_err());
        // The service's feeder panics after the first response.
        let request = OutputRequest {
            response_parameters: vec![parameters(1), parameters(-1)],
            ..OutputRequest::default()
        };
        let mut responses = client.streaming_output_call(request).await.unwrap().into_inner();
        responses.message().await.unwrap().unwrap();
        failed(responses.message().await.unwrap_err());
        fixture.end().await;
    }
}

/// tonic reports a cancelled request to its handler as `CANCELLED`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_reader_gets_error_if_caller_shuts_down_or_cancels() {
    for mut fixture in [Fixture::trunkline().await, Fixture::on_pollers().await] {
        for dies in [false, true] {
            let mut client = fixture.client();
            let requests = tokio_stream::once(InputRequest { payload: zeros(1) });
            let requests = requests.chain(tokio_stream::pending());
            let call = tokio::spawn(async move { client.streaming_input_call(requests).await });
            fixture.until_running(1).await;
            if dies {
                fixture.nodes.remove(0).shutdown_async().await;
            } else {
                call.abort();
            }
            fixture.until_running(0).await;
        }
        assert_eq!(fixture.service.uploads(), [Err(Code::Unknown), Err(Code::Unknown)]);
        fixture.end().await;
    }
}

/// Environment variable for the server's address in the caller's process.
const SERVER: &str = "TRUNKLINE_TEST_SERVER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upload_reader_gets_error_if_caller_is_killed() {
    if let Ok(server) = std::env::var(SERVER) {
        let node = Node::builder().listen((fresh_ip(), 0)).start_async().await.unwrap();
        let channel = Transport::Trunkline(trunkline_tonic::Channel::new(&node, server));
        let requests = std::iter::repeat_with(|| InputRequest { payload: zeros(100_000) });
        // The call continues until this process is killed.
        let outcome =
            TestServiceClient::new(channel).streaming_input_call(tokio_stream::iter(requests)).await;
        panic!("{outcome:?}");
    }
    for on_pollers in [false, true] {
        let service = Interop::default();
        let server = trunkline_tonic::Server::new(routes(service.clone()));
        let server = if on_pollers { server.on_pollers() } else { server.runtime(Handle::current()) };
        let server = Node::builder().listen((fresh_ip(), 0)).tokio(Handle::current()).serve(server);
        let server = server.start_async().await.unwrap();
        let address = server.local_address();
        let transport = Transport::Trunkline(trunkline_tonic::Channel::new(&server, address));
        let fixture = Fixture { service, transport, nodes: vec![server] };
        let name = "upload_reader_gets_error_if_caller_is_killed";
        let mut command = same_test(module_path!(), name);
        let mut caller = Process::start("caller", command.env(SERVER, address.to_string())).unwrap();
        fixture.until_running(1).await;
        caller.kill().unwrap();
        fixture.until_running(0).await;
        assert_eq!(fixture.service.uploads(), [Err(Code::Unknown)]);
        fixture.end().await;
    }
}

/// A task on the node updates tonic-health's reporter. The context of an exchange notifies its handler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_checks_and_handlers_are_notified_of_drain() {
    use tonic_health::ServingStatus;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let (reporter, health) = tonic_health::server::health_reporter();
    let (told, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let layer = tower::util::MapRequestLayer::new(move |request: http::Request<AxumBody>| {
        let (cx, told) = (trunkline::Context::current().expect("an exchange"), told.clone());
        tokio::spawn(async move {
            cx.draining().await;
            told.send(()).unwrap();
        });
        request
    });
    let routes = Routes::from(Routes::new(health).into_axum_router().layer(layer));
    let (network, runtime) = (InProcessNetwork::new(), tokio::runtime::Handle::current());
    let server = trunkline_tonic::Server::new(routes).runtime(runtime);
    let server = Node::builder().in_process(&network).serve(server).start_async().await.unwrap();
    let node = Node::builder().in_process(&network).start_async().await.unwrap();
    let reports = server.run_on(trunkline::PollerIndex(0), |poller| async move {
        poller.draining().await;
        reporter.set_service_status("", ServingStatus::NotServing).await;
    });
    let mut client = HealthClient::new(trunkline_tonic::Channel::new(&node, server.local_address()));
    let mut watched = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
    let draining = server.drain_async();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 2);
    assert_eq!(ended.recv().await, Some(()));
    drop(watched);
    assert!(draining.await);
    reports.await.unwrap();
    node.shutdown_async().await;
    server.shutdown_async().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn channel_waits_for_restart_of_server() {
    let serve = |address: String| async move {
        let server = trunkline_tonic::Server::new(all_routes(Interop::default())).on_pollers();
        let node = Node::builder().listen(address).tokio(Handle::current()).serve(server);
        node.start_async().await.unwrap()
    };
    let server = serve("127.0.0.1:0".to_owned()).await;
    let address = server.local_address();
    server.shutdown_async().await;
    let node = Node::builder().listen("127.0.0.1:0").start_async().await.unwrap();
    let channel = trunkline_tonic::Channel::new(&node, address);
    let mut patient = TestServiceClient::new(channel.clone().with_connect(trunkline::Connect::Wait));
    let call = tokio::spawn(async move { patient.empty_call(Empty {}).await });
    let status = TestServiceClient::new(channel).empty_call(Empty {}).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let server = serve(address.to_string()).await;
    assert!(call.await.unwrap().is_ok());
    node.shutdown_async().await;
    server.shutdown_async().await;
}
