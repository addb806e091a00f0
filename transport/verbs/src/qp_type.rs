//! The transport types of queue pairs.

/// Transport type of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// XRC initiator (`IBV_QPT_XRC_SEND`): sends only.
    XrcIni,
    /// XRC target (`IBV_QPT_XRC_RECV`): receives only, into any XRC SRQ of its domain.
    XrcTgt,
}
