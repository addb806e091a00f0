//! Errors of services: what a handler returns arrives, and is told from what a node makes of a call.

use crate::common::{node, pair};
use serde::{Deserialize, Serialize};
use trunkline::{CallError, Code, Origin, Reason, Status, block_on};

/// Errors with derives only.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
enum ShopError {
    #[error("only {left} are left")]
    OutOfStock { left: u32, of: Vec<String> },
    #[error("the shop is closed")]
    Closed,
    #[error("payment: {0}")]
    Payment(#[from] CallError<PaymentError>),
    #[error("the warehouse: {0}")]
    Warehouse(
        #[serde(with = "trunkline::nested_status")]
        #[from]
        Status,
    ),
}

#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize, Deserialize)]
#[error("the card was refused")]
struct PaymentError;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    number: u64,
}

#[trunkline::service]
trait Shop {
    async fn order(&self, what: String) -> Result<Order, ShopError>;
    /// A status of this code, with details of the given size.
    async fn fail(&self, code: u8, details: usize) -> Result<(), Status>;
    /// Returns an error that hides its type, as handlers may.
    async fn hidden(&self, path: String) -> anyhow::Result<String>;
    async fn report(&self, path: String) -> eyre::Result<String>;
}

struct Keeper;

impl Shop for Keeper {
    async fn order(&self, what: String) -> Result<Order, ShopError> {
        match what.as_str() {
            "salt" => Ok(Order { number: 7 }),
            "pepper" => Err(ShopError::OutOfStock { left: 3, of: vec![what] }),
            "gold" => Err(CallError::Handler(PaymentError).into()),
            "silver" => Err(CallError::<PaymentError>::Status(Status::unavailable("no bank")).into()),
            "sand" => Err(Status::aborted("moved").with_cause("by train").into()),
            "panic" => panic!("a handler panics on purpose"),
            _ => Err(ShopError::Closed),
        }
    }
    async fn fail(&self, code: u8, details: usize) -> Result<(), Status> {
        Err(Status::new(Code::from_number(code), "no").with_details(vec![7; details]))
    }
    async fn hidden(&self, path: String) -> anyhow::Result<String> {
        use anyhow::Context as _;
        std::fs::read_to_string(&path).with_context(|| format!("{path} is not a receipt"))
    }
    async fn report(&self, path: String) -> eyre::Result<String> {
        Err(Status::not_found(path).into())
    }
}

/// A name at which there is no file.
const NOWHERE: &str = "/no such directory/file";

#[test]
fn an_error_with_derives_only_arrives_and_is_told_from_errors_of_transport() {
    let (server, node) = pair(ShopServer::new(Keeper));
    let client = ShopClient::connect(&node, server.local_address()).unwrap();
    let order = |what: &str| block_on(client.order(what.to_owned()));
    assert_eq!(order("salt"), Ok(Order { number: 7 }));
    let out = ShopError::OutOfStock { left: 3, of: vec!["pepper".to_owned()] };
    assert_eq!(order("pepper"), Err(CallError::Handler(out)));
    assert_eq!(order("").unwrap_err().handler(), Some(&ShopError::Closed));
    // Errors within errors, and a status within one.
    assert_eq!(order("gold").unwrap_err().to_string(), "payment: the card was refused");
    let Err(CallError::Handler(ShopError::Payment(CallError::Status(bank)))) = order("silver") else {
        panic!("the status of another call")
    };
    assert_eq!((bank.code(), bank.message(), bank.origin()), (Code::Unavailable, "no bank", Origin::Handler));
    let Err(CallError::Handler(ShopError::Warehouse(status))) = order("sand") else { panic!("a status") };
    assert_eq!((status.code(), status.causes()), (Code::Aborted, &["by train".to_owned()][..]));
    // A node's conversion of a call's end.
    let panicked = order("panic").unwrap_err();
    assert_eq!(panicked.status().and_then(Status::reason), Some(Reason::Panicked), "{panicked}");
    server.shutdown();
    let gone = order("salt").unwrap_err();
    assert_eq!(gone.status().map(Status::code), Some(Code::Unavailable), "{gone}");
    // A caller that returns a status, or hides types, uses `?`.
    assert_eq!(Status::from(gone).code(), Code::Unavailable);
    let hidden: anyhow::Error = order("salt").unwrap_err().into();
    assert!(hidden.downcast_ref::<CallError<ShopError>>().is_some());
}

#[test]
fn all_codes_arrive_with_details_of_any_size() {
    let (server, node) = pair(ShopServer::new(Keeper));
    let client = ShopClient::connect(&node, server.local_address()).unwrap();
    for code in 1..=16 {
        let status = block_on(client.fail(code, usize::from(code))).unwrap_err();
        assert_eq!((status.code().number(), status.origin()), (code, Origin::Handler));
        assert_eq!((status.message(), status.details().len()), ("no", usize::from(code)));
    }
    for size in [0, 1, 1023, 1024, 1025, 16 << 10, (16 << 10) + 1, 100_000, (1 << 20) - 1, 1 << 20] {
        let status = block_on(client.fail(9, size)).unwrap_err();
        assert_eq!((status.details().len(), status.causes()), (size, &[][..]));
        assert!(status.details().iter().all(|byte| *byte == 7));
    }
}

#[test]
fn errors_of_others_become_a_status_with_their_causes() {
    let server = node().serve(ShopServer::new(Keeper)).start().unwrap();
    let node = node().start().unwrap();
    let client = ShopClient::connect(&node, server.local_address()).unwrap();
    let status = block_on(client.hidden(NOWHERE.to_owned())).unwrap_err();
    assert_eq!((status.code(), status.causes().len()), (Code::Unknown, 1), "{status}");
    assert!(status.message().contains("is not a receipt"), "{status}");
    let status = block_on(client.report("receipt".to_owned())).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "receipt"), "{status}");
}
