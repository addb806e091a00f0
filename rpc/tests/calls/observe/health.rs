//! The health service: the status of services, watches, and drains.

use crate::common::{LIMIT, node};
use trunkline::health::{Health as _, HealthClient, HealthReporter, ServingStatus};
use trunkline::{Code, Node, Reason, Streaming, block_on};

#[trunkline::service(name = "shop.Shop")]
trait Shop {
    async fn price(&self) -> u32;
}

struct Till;

impl Shop for Till {
    async fn price(&self) -> u32 {
        1
    }
}

/// Starts a server with the health service and a node that calls it. Returns both nodes and the client.
fn start(health: &HealthReporter) -> (Node, Node, HealthClient) {
    let server = node().grace(LIMIT).serve(ShopServer::new(Till)).health(health).start().unwrap();
    let caller = node().start().unwrap();
    let client = HealthClient::connect(&caller, server.local_address()).unwrap().with_timeout(LIMIT);
    (server, caller, client)
}

fn next(watch: &mut Streaming<ServingStatus>) -> Option<ServingStatus> {
    block_on(watch.message()).unwrap()
}

#[test]
fn services_report_serving_until_program_changes_status() {
    let health = HealthReporter::new();
    health.set("shop.Cellar", ServingStatus::NotServing);
    let (_server, _caller, client) = start(&health);
    let check = |service: &str| block_on(client.check(service.to_owned()));
    for service in ["", "shop.Shop", "trunkline.health.v1.Health"] {
        assert_eq!(check(service), Ok(ServingStatus::Serving), "{service}");
    }
    assert_eq!(check("shop.Cellar"), Ok(ServingStatus::NotServing));
    assert_eq!(check("shop.Shops").unwrap_err().code(), Code::NotFound);
    health.set("shop.Shop", ServingStatus::NotServing);
    assert_eq!((check("shop.Shop"), check("")), (Ok(ServingStatus::NotServing), Ok(ServingStatus::Serving)));
    health.set("shop.Shop", ServingStatus::ServiceUnknown);
    assert_eq!(check("shop.Shop").unwrap_err().code(), Code::NotFound);
}

#[test]
fn refusal_repeats_part_of_long_name() {
    let refused = block_on(HealthReporter::new().check("\u{1}".repeat(1 << 20))).unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().len() < 4096, "{} bytes", refused.message().len());
}

#[test]
fn watch_reports_only_changes() {
    let health = HealthReporter::new();
    let (_server, _caller, client) = start(&health);
    let mut shop = block_on(client.watch("shop.Shop".into())).unwrap();
    let mut later = block_on(client.watch("shop.Later".into())).unwrap();
    assert_eq!(next(&mut shop), Some(ServingStatus::Serving));
    assert_eq!(next(&mut later), Some(ServingStatus::ServiceUnknown));
    health.set("shop.Shop", ServingStatus::Serving);
    health.set("shop.Later", ServingStatus::Serving);
    assert_eq!(next(&mut later), Some(ServingStatus::Serving));
    health.set("shop.Shop", ServingStatus::NotServing);
    assert_eq!(next(&mut shop), Some(ServingStatus::NotServing));
    health.set("shop.Later", ServingStatus::ServiceUnknown);
    assert_eq!(next(&mut later), Some(ServingStatus::ServiceUnknown));
}

#[test]
fn drain_reports_not_serving_and_ends_watches() {
    let health = HealthReporter::new();
    let (server, _caller, client) = start(&health);
    let mut shop = block_on(client.watch("shop.Shop".into())).unwrap();
    let mut later = block_on(client.watch("shop.Later".into())).unwrap();
    assert_eq!(next(&mut shop), Some(ServingStatus::Serving));
    assert_eq!(next(&mut later), Some(ServingStatus::ServiceUnknown));
    server.begin_drain();
    assert_eq!((next(&mut shop), next(&mut shop)), (Some(ServingStatus::NotServing), None));
    assert_eq!(next(&mut later), None);
    assert!(server.drain(), "no watch holds it");
    let status = block_on(client.check("shop.Shop".into())).unwrap_err();
    assert_eq!((status.code(), status.reason()), (Code::Unavailable, Some(Reason::Draining)), "{status}");
}
