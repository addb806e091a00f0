//! Generates the services from Rust definitions, so that `protoc` is not needed. For a `.proto` file, `tonic-prost-build`
//! generates the services and the messages.

use tonic_build::manual::{Builder, Method, MethodBuilder, Service};

fn method(name: &str, route: &str, input: &str, output: &str) -> MethodBuilder {
    let [input, output] = [input, output].map(|message| format!("crate::messages::{message}"));
    let builder = Method::builder().name(name).route_name(route).codec_path("tonic_prost::ProstCodec");
    builder.input_type(input).output_type(output)
}

fn main() {
    let greeter = Service::builder().name("Greeter").package("trunkline.example");
    let greeter = greeter.method(method("greet", "Greet", "Name", "Greeting").build()).build();
    let guide = Service::builder()
        .name("RouteGuide")
        .package("trunkline.example")
        .method(method("nearest", "Nearest", "Point", "Landmark").build())
        .method(method("within", "Within", "Area", "Landmark").server_streaming().build())
        .method(method("record", "Record", "Point", "Journey").client_streaming().build())
        .method(method("talk", "Talk", "Note", "Note").client_streaming().server_streaming().build())
        .build();
    Builder::new().compile(&[greeter, guide]);
}
