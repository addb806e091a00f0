//! The messages, in the form that prost generates from a `.proto` file.

/// The name of the person to greet.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Name {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A greeting.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Greeting {
    /// The text of the greeting.
    #[prost(string, tag = "1")]
    pub text: String,
}

/// A point on the map, in metres.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Point {
    /// Distance east of the origin, in metres.
    #[prost(sint32, tag = "1")]
    pub east: i32,
    /// Distance north of the origin, in metres.
    #[prost(sint32, tag = "2")]
    pub north: i32,
}

/// A place with a name.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Landmark {
    /// The name of the landmark.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The position of the landmark.
    #[prost(message, optional, tag = "2")]
    pub place: Option<Point>,
}

/// A rectangle on the map.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Area {
    /// The south-western corner.
    #[prost(message, optional, tag = "1")]
    pub low: Option<Point>,
    /// The north-eastern corner.
    #[prost(message, optional, tag = "2")]
    pub high: Option<Point>,
}

/// The summary of a journey.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Journey {
    /// Number of points.
    #[prost(uint32, tag = "1")]
    pub points: u32,
    /// Length of the journey, in metres.
    #[prost(double, tag = "2")]
    pub metres: f64,
}

/// A note left by a traveller at a point.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Note {
    /// The point at which the note is left.
    #[prost(message, optional, tag = "1")]
    pub at: Option<Point>,
    /// The text of the note.
    #[prost(string, tag = "2")]
    pub text: String,
}
