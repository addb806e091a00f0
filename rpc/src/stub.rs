//! What generated code uses. Programs need it only if they write stubs by hand.

pub use crate::call::{Call, Response, Wait};
pub use crate::client::{LocalWait, SharedWait};
pub use crate::name::{MethodName, ServiceName};
pub use crate::server::{Methods, Replier, Reply, Request, Service};
