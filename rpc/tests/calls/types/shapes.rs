//! Types that differ between a client and a server with the same version.

use crate::common::{pair, until};
use crate::logged::Logged;
use serde::{Deserialize, Serialize};
use trunkline::{Code, Node, Origin, Reason, Status, block_on};

/// Defines the same service with a type in several forms.
macro_rules! side {
    ($module:ident { $($field:ident),* } { $($state:ident),* }) => {
        mod $module {
            use super::*;

            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
            pub(super) struct Order {
                $(pub(super) $field: u64,)*
                pub(super) state: Phase,
            }

            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
            pub(super) enum Phase {
                $($state),*
            }

            #[trunkline::service(name = "tests.Shapes")]
            pub(super) trait Shapes {
                async fn place(&self, key: u8, order: Order) -> Result<u64, Status>;
                #[oneway]
                async fn note(&self, order: Order);
            }

            pub(super) struct Shop;

            impl Shapes for Shop {
                async fn place(&self, key: u8, _: Order) -> Result<u64, Status> {
                    Ok(key.into())
                }
                async fn note(&self, _: Order) {}
            }
        }
    };
}

side!(first { net, tax } { New, Paid });
side!(swapped { tax, net } { New, Paid });
side!(added { net, tax } { New, Shipped, Paid });

macro_rules! order {
    ($module:ident) => {
        $module::Order { net: 100, tax: 19, state: $module::Phase::Paid }
    };
}

#[track_caller]
fn refused(status: &Status, difference: &str) {
    let told = (status.code(), status.reason(), status.origin(), status.may_have_run());
    assert_eq!(told, (Code::FailedPrecondition, Some(Reason::OtherShape), Origin::Peer, false), "{status}");
    assert!(status.message().contains(difference), "{status}");
}

fn counted(node: &Node, name: &str) -> u64 {
    node.report().counter(name).unwrap()
}

#[test]
fn swapped_fields_and_added_variants_are_refused_by_name() {
    let (server, from) = pair(first::ShapesServer::new(first::Shop));
    let at = server.local_address();
    let same = first::ShapesClient::connect(&from, at).unwrap();
    let swapped = swapped::ShapesClient::connect(&from, at).unwrap();
    let added = added::ShapesClient::connect(&from, at).unwrap();
    // The second round checks that a client does not use a number received by another client.
    for _ in 0..2 {
        assert_eq!(block_on(same.place(7, order!(first))), Ok(7));
        let status = block_on(swapped.place(7, order!(swapped))).unwrap_err();
        refused(&status, "argument 2 `order`: field 1 of `Order` is `tax` here and `net` at the server");
        let status = block_on(added.place(7, order!(added))).unwrap_err();
        refused(
            &status,
            "argument 2 `order`: variant 2 of `Phase` is `Shipped` here and `Paid` at the server",
        );
    }
}

#[test]
fn one_way_calls_of_another_shape_are_dropped_and_counted_and_logged_once() {
    let warnings = Logged::by_all();
    let (server, from) = pair(first::ShapesServer::new(first::Shop));
    let client = swapped::ShapesClient::connect(&from, server.local_address()).unwrap();
    for _ in 0..3 {
        assert_eq!(block_on(client.note(order!(swapped))), Ok(()));
    }
    until("the server's count", || (counted(&server, "one_way_requests_not_served") == 3).then_some(()));
    until("the caller's count", || (counted(&from, "one_way_calls_not_served") == 3).then_some(()));
    assert_eq!(warnings.count("argument `order` has another shape"), 1);
}

/// Versions whose author guarantees that their types are compatible.
mod versions {
    #[trunkline::service(name = "tests.Widened")]
    pub(super) trait Old {
        async fn next(&self, number: u16) -> u16;
    }

    #[trunkline::service(name = "tests.Widened", version = 2, accepts = 1..=2)]
    pub(super) trait New {
        async fn next(&self, number: u64) -> u64;
    }

    impl Old for super::Versions {
        async fn next(&self, number: u16) -> u16 {
            number + 1
        }
    }
}

struct Versions;

#[test]
fn accepted_versions_are_not_compared() {
    let (server, from) = pair(versions::OldServer::new(Versions));
    let client = versions::NewClient::connect(&from, server.local_address()).unwrap();
    assert_eq!(block_on(client.next(7)), Ok(8));
}
