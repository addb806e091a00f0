//! The API that generated code uses. Programs need it only for stubs written by hand.

use crate::client::CallOptions;

pub use crate::call::{
    After, Call, Decoded, Opened, Outgoing, Response, StreamWait, Wait, no_items, outgoing,
};
pub use crate::client::{LocalWait, SharedWait};
pub use crate::codec::{
    ArgumentList, Coded, Coding, DecodeArguments, DecodeValue, Decoder, EncodeArguments, EncodeValue,
    NoCoding, NoValue, TypeShape,
};
pub use crate::executor::pool::{Pool, Ticket};
pub use crate::executor::wakes::after_turn;
pub use crate::node::start_error::Cause;
pub use crate::observe::counted::CODES;
pub use crate::server::{EncodedError, Failure, Methods, Replier, Reply, Request, Service, Writer};
pub use crate::status::call_error::{Failing, Fallible, HandlerError, MethodError, NotFailing};
pub use crate::stream::ItemBuffer;
pub use crate::stream::peer_memory::PeerMemory;
pub use crate::wire::method_shapes::{MethodShapes, ShapeList};
pub use crate::wire::name::{MethodName, ServiceName, Streams, trace};
pub use crate::wire::named::{Borrowed, Named, NotNamed, require};
pub use futures_core::Stream;

/// The options of a call whose client has set none.
pub static DEFAULT_OPTIONS: CallOptions = CallOptions::new();
