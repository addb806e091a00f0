//! Methods that run in the worker pool: errors of a method are reported at the method, errors of a server at its constructor.

use std::cell::Cell;
use std::rc::Rc;
use trunkline::Status;

#[trunkline::service]
trait Both {
    #[offload]
    #[blocking]
    async fn store(&self) -> Result<(), Status>;
}

#[trunkline::service]
trait WithArguments {
    #[blocking(4)]
    async fn store(&self) -> Result<(), Status>;
}

#[trunkline::service]
trait Pooled {
    #[blocking]
    async fn store(&self) -> Result<(), Status>;
    #[offload]
    async fn load(&self) -> Result<u8, Status>;
}

struct Handler;

impl Pooled for Handler {
    async fn store(&self) -> Result<(), Status> {
        Ok(())
    }
    async fn load(&self) -> Result<u8, Status> {
        let shared = Rc::new(1);
        trunkline::yield_now().await;
        Ok(*shared)
    }
}

struct NotShared(Cell<u8>);

impl Pooled for NotShared {
    async fn store(&self) -> Result<(), Status> {
        Ok(())
    }
    async fn load(&self) -> Result<u8, Status> {
        Ok(1)
    }
}

fn servers() {
    let _one_for_each = PooledServer::per_poller(|_| Ok::<_, Status>(Handler));
    let _not_shared = PooledServer::new(NotShared(Cell::new(1)));
}

fn main() {}
