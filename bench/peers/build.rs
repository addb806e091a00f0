//! Generates the gRPC service without `protoc`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let call = Method::builder()
        .name("call")
        .route_name("Call")
        .input_type("crate::tonic_echo::Message")
        .output_type("crate::tonic_echo::Message")
        .codec_path("tonic_prost::ProstCodec")
        .build();
    let echo = Service::builder().name("Echo").package("trunkline.bench").method(call).build();
    Builder::new().compile(&[echo]);
}
