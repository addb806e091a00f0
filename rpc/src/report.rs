//! What a node reports about itself: [`Node::report`](crate::Node::report), and what that consists of.

pub use trunkline_transport::{
    BudgetReport, DeviceCounter, LaneReport, LimitReport, NodeReport, PathReport, PeerKey,
};
