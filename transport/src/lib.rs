//! Pollers, trunks, sessions, credits and registered buffers over XRC.

mod upper;

pub use upper::{
    Carrier, Message, Origin, Outgoing, PeerDown, PeerEvent, PeerKey, PollerIndex, SendError, SendFailure,
    SendOutcome, Token, Upper,
};
