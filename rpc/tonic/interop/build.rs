//! Generates the test service from Rust definitions, so that `protoc` is not needed.

use tonic_build::manual::{Builder, Method, MethodBuilder, Service};

fn method(name: &str, route: &str, input: &str, output: &str) -> MethodBuilder {
    let [input, output] = [input, output].map(|message| format!("crate::messages::{message}"));
    let builder = Method::builder().name(name).route_name(route).codec_path("tonic_prost::ProstCodec");
    builder.input_type(input).output_type(output)
}

fn main() {
    let empty = method("empty_call", "EmptyCall", "Empty", "Empty");
    let unary = method("unary_call", "UnaryCall", "SimpleRequest", "SimpleResponse");
    let output = method("streaming_output_call", "StreamingOutputCall", "OutputRequest", "OutputResponse");
    let input = method("streaming_input_call", "StreamingInputCall", "InputRequest", "InputResponse");
    let duplex = method("full_duplex_call", "FullDuplexCall", "OutputRequest", "OutputResponse");
    let test = Service::builder()
        .name("TestService")
        .package("grpc.testing")
        .method(empty.build())
        .method(unary.build())
        .method(output.server_streaming().build())
        .method(input.client_streaming().build())
        .method(duplex.client_streaming().server_streaming().build())
        .build();
    Builder::new().compile(&[test]);
}
