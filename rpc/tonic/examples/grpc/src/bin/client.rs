//! Calls the greeter and each method of the route guide, and prints the answers.

use std::net::SocketAddr;
use tokio_stream::StreamExt as _;
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceExt as _};
use trunkline::Node;
use trunkline_example_grpc::messages::{Area, Name, Note, Point};
use trunkline_example_grpc::{GreeterClient, Options, RouteGuideClient};

/// A channel of either transport.
type Connection = BoxCloneService<http::Request<Body>, http::Response<Body>, BoxError>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let options = Options::parse()?;
    if options.tcp {
        let endpoint = Endpoint::try_from(format!("http://{}", options.address))?;
        return tour(connection(endpoint.connect().await?)).await;
    }
    let node = Node::builder().listen(SocketAddr::new(options.address.ip(), 0)).start_async().await?;
    let outcome = tour(connection(trunkline_tonic::Channel::new(&node, options.address))).await;
    node.shutdown_async().await;
    outcome
}

/// Converts the channels of both transports to one type. A program with only one transport does not need this.
fn connection<C>(channel: C) -> Connection
where
    C: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    channel.map_err(Into::into).boxed_clone()
}

async fn tour(connection: Connection) -> Result<(), BoxError> {
    let mut greeter = GreeterClient::new(connection.clone());
    println!("{}", greeter.greet(Name { name: "trunk".into() }).await?.into_inner().text);

    let mut guide = RouteGuideClient::new(connection);
    let start = Point { east: 10, north: 20 };
    println!("nearest: {}", guide.nearest(start).await?.into_inner().name);

    let area =
        Area { low: Some(Point { east: -500, north: 0 }), high: Some(Point { east: 500, north: 500 }) };
    let mut landmarks = guide.within(area).await?.into_inner();
    while let Some(landmark) = landmarks.message().await? {
        println!("within: {}", landmark.name);
    }

    let points = [start, Point { east: 13, north: 24 }, Point { east: 13, north: 34 }];
    let journey = guide.record(tokio_stream::iter(points)).await?.into_inner();
    println!("recorded: {} points, {} m", journey.points, journey.metres);

    let notes = ["ducks", "no ducks"].map(|text| Note { at: Some(start), text: text.into() });
    let mut answers = guide.talk(tokio_stream::iter(notes)).await?.into_inner();
    while let Some(note) = answers.next().await {
        println!("read: {}", note?.text);
    }
    Ok(())
}
