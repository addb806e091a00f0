//! Two machines and a network between them that loses, repeats and reorders as told.

mod ending;
mod handshake;
mod hostile;
mod interop;
mod loss;
mod network;
mod random;
mod sidr;

use super::*;
use network::{A, B, Network, connect_to, milliseconds};
