//! The messages, as prost makes them from a `.proto` file.

/// The name of a caller.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Name {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A greeting.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Greeting {
    /// Its text.
    #[prost(string, tag = "1")]
    pub text: String,
}

/// A point of the map, in metres.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Point {
    /// Distance to the east of the origin.
    #[prost(sint32, tag = "1")]
    pub east: i32,
    /// Distance to the north of the origin.
    #[prost(sint32, tag = "2")]
    pub north: i32,
}

/// A place with a name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Landmark {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its place.
    #[prost(message, optional, tag = "2")]
    pub place: Option<Point>,
}

/// A rectangle of the map.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Area {
    /// Its south-western corner.
    #[prost(message, optional, tag = "1")]
    pub low: Option<Point>,
    /// Its north-eastern corner.
    #[prost(message, optional, tag = "2")]
    pub high: Option<Point>,
}

/// The summary of a journey.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Journey {
    /// Number of its points.
    #[prost(uint32, tag = "1")]
    pub points: u32,
    /// Its length, in metres.
    #[prost(double, tag = "2")]
    pub metres: f64,
}

/// A note that a traveller leaves at a point.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Note {
    /// The point.
    #[prost(message, optional, tag = "1")]
    pub at: Option<Point>,
    /// The text.
    #[prost(string, tag = "2")]
    pub text: String,
}
