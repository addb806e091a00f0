//! The server side: services, their methods and running requests.

mod arguments;
mod authorize;
mod caller;
mod dispatch;
mod interceptor;
mod limits;
mod method;
#[cfg(feature = "policy")]
pub(crate) mod policy;
mod replies;
mod request;
mod service;

pub(crate) use arguments::ArgumentMemory;
pub(crate) use authorize::Authorizers;
pub use authorize::{Authorize, IncomingCall};
pub(crate) use dispatch::Dispatch;
pub use interceptor::{ServerCall, ServerInterceptor};
pub(crate) use limits::LimitReports;
pub use request::{EncodedError, Failure, Replier, Reply, Request, Writer};
pub(crate) use service::{AddRows, MethodNumbers};
pub use service::{Methods, Service};
