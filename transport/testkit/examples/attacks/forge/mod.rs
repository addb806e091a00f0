//! Forged packets: their sockets, connection requests, and packets of live connections.

mod live;
mod pace;
mod request;
mod socket;

pub(crate) use live::Live;
pub(crate) use pace::paced;
pub(crate) use request::{Dialer, version_of};
pub(crate) use socket::{Caught, Forger, Sink};
