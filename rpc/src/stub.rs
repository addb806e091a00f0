//! What generated code uses. Programs need it only if they write stubs by hand.

pub use crate::call::{Call, Decoded, Response, Wait};
pub use crate::call_error::{Fallible, HandlerError, IsStatus, is_handler_error, is_status};
pub use crate::client::{LocalWait, SharedWait};
pub use crate::codec::{ArgumentList, DecodeArguments, EncodeArguments};
pub use crate::name::{MethodName, ServiceName};
pub use crate::proof::{IsBytes, is_bytes};
pub use crate::server::{EncodedError, Failure, Methods, Replier, Reply, Request, Service};
