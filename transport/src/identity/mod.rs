//! Proof of the names of two nodes, by certificates, in a handshake that precedes a session.
//!
//! `docs/security.md`, *Identity*, specifies it. Nothing here does I/O, and nothing of it runs on a poller. The
//! sessions do not use it yet.
//!
//! | module | contents |
//! |---|---|
//! | [`flight`] | flights of TLS: reassembly, and the types of their messages |
//! | [`binding`] | the list of what both sides saw, and its comparison |
//! | [`keys`] | secrets of lanes, derived from the exporter of TLS |
#![forbid(unsafe_code)]

pub(crate) mod binding;
pub(crate) mod flight;
#[cfg_attr(not(test), expect(dead_code, reason = "sessions do not use it yet"))]
pub(crate) mod keys;
