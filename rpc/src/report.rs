//! The report of a node, from [`Node::report`](crate::Node::report).

pub use trunkline_transport::{
    BudgetReport, DeviceCounter, FailedCalls, Histogram, LaneReport, LimitReport, MethodReport, NodeReport,
    PathReport, PeerKey, ServerReport,
};
