//! Calls through many clones of a client.

use crate::common::node;
use trunkline::{Status, block_on};

#[trunkline::service]
trait Echo {
    async fn echo(&self, number: u64, text: String) -> Result<(u64, String), Status>;
}

struct Echoing;

impl Echo for Echoing {
    async fn echo(&self, number: u64, text: String) -> Result<(u64, String), Status> {
        Ok((number, text))
    }
}

#[test]
fn calls_through_cloned_clients_use_all_pollers_equally() {
    let server = node().serve(EchoServer::new(Echoing)).start().unwrap();
    let node = node().pollers(4).start().unwrap();
    let client = EchoClient::connect(&node, server.local_address()).unwrap();
    for number in 0..400 {
        let one_call = client.clone();
        assert_eq!(block_on(one_call.echo(number, String::new())), Ok((number, String::new())));
    }
    let mut received = [0; 4];
    for lane in node.report().traffic {
        received[usize::from(lane.local.0)] += lane.received;
    }
    assert!(received.iter().all(|count| (80..=120).contains(count)), "{received:?}");
}
