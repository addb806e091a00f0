//! Forged packets: their sockets, connection requests, and packets of live connections.

mod pace;
mod request;
mod socket;
mod tap;

pub(crate) use pace::paced;
pub(crate) use request::{Dialer, version_of};
pub(crate) use socket::{Caught, Forger, RawForger, Sink};
pub(crate) use tap::{Seen, Tap};
