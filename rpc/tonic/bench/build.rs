//! Generates the measured service from Rust definitions, so that `protoc` is not needed.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str| {
        let method = Method::builder().name(name).route_name(route).codec_path("tonic_prost::ProstCodec");
        method.input_type("crate::service::Message").output_type("crate::service::Message")
    };
    let echo = Service::builder()
        .name("Echo")
        .package("trunkline.bench")
        .method(method("call", "Call").build())
        .method(method("feed", "Feed").server_streaming().build())
        .method(method("upload", "Upload").client_streaming().build())
        .build();
    Builder::new().compile(&[echo]);
}
