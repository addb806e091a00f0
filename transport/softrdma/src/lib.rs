//! A network card written as a library: RoCEv2 with XRC in user space, unprivileged.
//!
//! Layers, each usable and tested by itself, each knowing only those before it:
//!
//! | module | what it is |
//! |---|---|
//! | [`wire`] | packet formats, parse and emit, ICRC: no I/O, never panics on any bytes |
//! | [`pcap`] | capture files, read and written |
//! | [`engine`] | requester and responder of RC and XRC, sans-IO |
//! | [`cm`] | the InfiniBand communication manager on QP1, sans-IO |
//! | `host` | what the members of one host share: the runtime directory and its registry |
//! | [`link`] | how packets travel: in process, UDP; faults and captures wrap any link |
//! | [`device`] | the verbs objects, and the threads that drive the layers below |

pub mod cm;
pub mod device;
pub mod engine;
mod host;
pub mod link;
pub mod pcap;
pub mod wire;
