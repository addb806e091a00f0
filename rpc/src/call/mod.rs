//! The parts of a call shared by callers, inboxes and pollers.
//!
//! A caller creates a [`Submission`] and holds a [`Call`]. A poller takes the submission and completes its [`Completion`].
//! This module does no I/O.

mod completion;
pub(crate) mod context;
mod future;
mod interceptors;
mod local_queue;
pub(crate) mod response;
mod stream;
mod submission;

pub(crate) use completion::{Completion, LocalCell, Outcome, shutting_down};
pub use future::{After, Call, Decoded, Wait};
pub(crate) use interceptors::{EndHooks, Interceptors, interceptor_panicked};
pub(crate) use local_queue::LocalQueue;
pub use response::Response;
pub(crate) use stream::{NewStream, Opening};
pub use stream::{Opened, Outgoing, StreamWait, no_items, outgoing};
pub use submission::Admission;
pub(crate) use submission::{AdmissionClass, NOWHERE, Submission, too_many};
