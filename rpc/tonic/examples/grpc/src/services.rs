//! The two services, implemented as for any tonic server. This code does not depend on the transport.

use crate::generated::greeter_server::{Greeter, GreeterServer};
use crate::generated::route_guide_server::{RouteGuide, RouteGuideServer};
use crate::messages::{Area, Greeting, Journey, Landmark, Name, Note, Point};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_stream::{Stream, StreamExt as _};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// The landmarks on the map.
const LANDMARKS: [(&str, Point); 4] = [
    ("bridge", Point { east: 0, north: 0 }),
    ("mill", Point { east: 300, north: 400 }),
    ("chapel", Point { east: -200, north: 900 }),
    ("quarry", Point { east: 1500, north: -100 }),
];

/// Returns the routes of both services.
#[must_use]
pub fn routes() -> Routes {
    Routes::new(GreeterServer::new(Polite)).add_service(RouteGuideServer::new(Guide::default()))
}

struct Polite;

#[tonic::async_trait]
impl Greeter for Polite {
    async fn greet(&self, request: Request<Name>) -> Result<Response<Greeting>, Status> {
        let name = request.into_inner().name;
        if name.is_empty() {
            return Err(Status::invalid_argument("expected a name"));
        }
        Ok(Response::new(Greeting { text: format!("Good day, {name}!") }))
    }
}

/// The guide, which stores the last note at each point.
#[derive(Default)]
struct Guide {
    notes: Arc<Mutex<HashMap<Point, String>>>,
}

type Items<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl RouteGuide for Guide {
    async fn nearest(&self, request: Request<Point>) -> Result<Response<Landmark>, Status> {
        let from = request.into_inner();
        let nearest = LANDMARKS.iter().min_by(|a, b| distance(from, a.1).total_cmp(&distance(from, b.1)));
        let nearest = nearest.ok_or_else(|| Status::not_found("the map is empty"))?;
        Ok(Response::new(landmark(nearest)))
    }

    type WithinStream = Items<Landmark>;

    async fn within(&self, request: Request<Area>) -> Result<Response<Self::WithinStream>, Status> {
        let Area { low: Some(low), high: Some(high) } = request.into_inner() else {
            return Err(Status::invalid_argument("expected both corners of an area"));
        };
        let is_inside = move |place: Point| {
            (low.east..=high.east).contains(&place.east) && (low.north..=high.north).contains(&place.north)
        };
        let found = LANDMARKS.iter().filter(move |(_, place)| is_inside(*place));
        let found = found.map(|found| Ok(landmark(found)));
        Ok(Response::new(Box::pin(tokio_stream::iter(found))))
    }

    async fn record(&self, request: Request<Streaming<Point>>) -> Result<Response<Journey>, Status> {
        let mut points = request.into_inner();
        let (mut journey, mut last) = (Journey::default(), None);
        while let Some(point) = points.message().await? {
            journey.points += 1;
            journey.metres += last.map_or(0.0, |last| distance(last, point));
            last = Some(point);
        }
        Ok(Response::new(journey))
    }

    type TalkStream = Items<Note>;

    async fn talk(&self, request: Request<Streaming<Note>>) -> Result<Response<Self::TalkStream>, Status> {
        let notes = Arc::clone(&self.notes);
        // The answer to each note is the previous note at the same point.
        let answers = request.into_inner().map(move |note| {
            let Note { at, text } = note?;
            let point = at.ok_or_else(|| Status::invalid_argument("expected the point of a note"))?;
            let before = notes.lock().unwrap_or_else(PoisonError::into_inner).insert(point, text);
            Ok(Note { at, text: before.unwrap_or_else(|| "nothing yet".into()) })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn landmark((name, place): &(&str, Point)) -> Landmark {
    Landmark { name: (*name).to_owned(), place: Some(*place) }
}

/// Returns the distance between two points, in metres.
fn distance(from: Point, to: Point) -> f64 {
    let difference = |a: i32, b: i32| f64::from(a) - f64::from(b);
    difference(from.east, to.east).hypot(difference(from.north, to.north))
}
