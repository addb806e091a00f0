//! Methods that cannot be called remotely: each trait is wrong for one reason.

#[trunkline::service]
trait Generic {
    async fn store<T>(&self, value: T) -> Result<(), Status>;
}

#[trunkline::service]
trait Bound {
    async fn store(&self) -> Result<(), Status>
    where
        Self: Sized;
}

#[trunkline::service]
trait WithoutSelf {
    async fn store() -> Result<(), Status>;
}

#[trunkline::service]
trait ByValue {
    async fn store(self) -> Result<(), Status>;
}

#[trunkline::service]
trait ByMutableReference {
    async fn store(&mut self) -> Result<(), Status>;
}

#[trunkline::service]
trait TypedSelf {
    async fn store(self: &Self) -> Result<(), Status>;
}

#[trunkline::service]
trait NotAsync {
    fn store(&self) -> Result<(), Status>;
}

#[trunkline::service]
trait NotSafe {
    async unsafe fn store(&self) -> Result<(), Status>;
}

#[trunkline::service]
trait OfAnAbi {
    async extern "C" fn store(&self) -> Result<(), Status>;
}

#[trunkline::service]
trait WithABody {
    async fn store(&self) -> Result<(), Status> {
        Ok(())
    }
}

#[trunkline::service]
trait Conditional {
    #[cfg(unix)]
    async fn store(&self) -> Result<(), Status>;
}

#[trunkline::service]
trait OneWayWithAReply {
    #[oneway]
    async fn store(&self) -> Result<(), Status>;
}

#[trunkline::service]
trait OneWayWithArguments {
    #[oneway(fast)]
    async fn store(&self);
}

#[trunkline::service]
trait SameRaw {
    async fn store(&self);
    async fn r#store(&self);
}

#[trunkline::service]
trait SameOnTheWire {
    async fn store(&self);
    #[name = "store"]
    async fn keep(&self);
}

#[trunkline::service]
trait NamedByANumber {
    #[name = 7]
    async fn store(&self);
}

#[trunkline::service]
trait NamedAsAList {
    #[name("store")]
    async fn keep(&self);
}

#[trunkline::service]
trait Taken {
    async fn connect(&self);
    async fn ordered(&self);
    async fn with(&self);
    async fn with_timeout(&self);
    async fn clone(&self);
}

struct Status;

fn main() {}
