//! The report of a node, from [`Node::report`](crate::Node::report).

pub use trunkline_transport::{
    BudgetReport, DeviceCounter, LaneReport, LimitReport, NodeReport, PathReport, PeerKey, ServerReport,
};
