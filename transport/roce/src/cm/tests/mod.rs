//! Two machines, and a network between them that loses, repeats and reorders messages as a test specifies.

mod ending;
mod fields;
mod handshake;
mod hostile;
mod interop;
mod loss;
mod network;
mod nonsense;
mod random;
mod sidr;
mod unreachable;

use super::*;
use network::{A, B, Network, connect_to, milliseconds};
