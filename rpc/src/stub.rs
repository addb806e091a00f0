//! What generated code is made of. Programs need it only when they write stubs by hand.

pub use crate::client::{Call, LocalWait, Response, SharedWait, Wait};
pub use crate::name::{MethodName, ServiceName};
pub use crate::server::{Methods, Replier, Reply, Request, Service};
