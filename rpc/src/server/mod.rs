//! The serving side: services, their methods, and the requests that run.

mod dispatch;
mod method;
mod request;
mod service;

pub(crate) use dispatch::Dispatch;
pub use request::{Replier, Reply, Request};
pub use service::{Methods, Service};
