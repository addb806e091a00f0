//! Types that cannot be sent: each trait is wrong for one reason, and has its errors at the type.

use trunkline::Bytes as Blob;

struct Order;
struct Refusal;

#[trunkline::service]
trait ArgumentWithoutDerives {
    async fn place(&self, shop: u8, order: Order) -> u8;
}

#[trunkline::service]
trait WithinAnother {
    async fn place(&self, orders: Vec<Order>) -> u8;
}

#[trunkline::service]
trait ResultWithoutDerives {
    async fn placed(&self) -> Option<Order>;
}

#[trunkline::service]
trait ResultWithinAResult {
    async fn placed(&self) -> Result<Order, trunkline::Status>;
}

#[trunkline::service]
trait ErrorWithoutDerives {
    async fn refuse(&self, number: u8) -> Result<u8, Refusal>;
}

#[trunkline::service]
trait BytesByAnotherName {
    async fn put(&self, key: String, value: Blob) -> u8;
}

#[trunkline::service]
trait ResultByAnotherName {
    async fn get(&self, key: String) -> Option<Blob>;
}

mod own {
    pub struct Bytes;
    pub struct Status;

    #[trunkline::service]
    trait OwnBytes {
        async fn put(&self, key: String, value: Bytes) -> u8;
    }

    #[trunkline::service]
    trait OwnBytesAsResult {
        async fn get(&self, key: String) -> Result<Option<Bytes>, trunkline::Status>;
    }

    #[trunkline::service]
    trait OwnStatus {
        async fn refuse(&self) -> Result<(), Status>;
    }
}

// Code from a later generator.
const _: () = trunkline::stub::require_version::<trunkline::stub::StubVersion<2>>();

fn main() {}
