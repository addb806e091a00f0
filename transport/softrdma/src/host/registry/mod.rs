//! Tables of the registry.
//!
//! | module | what it owns |
//! |---|---|
//! | `layout` | offset and size of each table, and members' identifiers |
//! | `records` | records of members in tables; a record is void without its member |
//! | `numbering` | the host's key, which turns table indices into numbers on the wire |
//! | `numbers` | blocks of QP and SRQ numbers, and their owners |
//! | `targets` | TGTs that processes share, in a separate segment |
//! | `ports` | the UDP ports from which members send, and the holder of a device's port at an address |
//! | `services` | the member that listens for each CM service |
//! | `domains` | the members that refer to each XRC domain |

pub(super) mod domains;
pub(super) mod layout;
pub(super) mod numbering;
pub(super) mod numbers;
pub(super) mod ports;
pub(super) mod records;
pub(super) mod services;
pub(super) mod targets;
