//! A greeter and a route guide built with tonic. `grpc-server` serves them and `grpc-client` calls them, over Trunkline or
//! over TCP.

#![forbid(unsafe_code)]

pub mod messages;
mod options;
mod services;

#[allow(missing_docs, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/trunkline.example.Greeter.rs"));
    include!(concat!(env!("OUT_DIR"), "/trunkline.example.RouteGuide.rs"));
}

pub use generated::greeter_client::GreeterClient;
pub use generated::route_guide_client::RouteGuideClient;
pub use options::Options;
pub use services::routes;
