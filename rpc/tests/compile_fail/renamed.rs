//! The library by another name, and from a crate that re-exports it. Only a trait without the option `crate`, and one whose
//! option does not name a crate, are wrong.

#[rpc::service]
trait WithoutAPath {
    async fn order(&self, item: String) -> Result<Option<rpc::Bytes>, rpc::Status>;
    async fn count(&self) -> Result<u64, String>;
}

mod facade {
    pub use rpc as renamed;
}

#[rpc::service(crate = nowhere::rpc)]
trait NoSuchPath {
    async fn order(&self, item: String) -> Result<Option<rpc::Bytes>, rpc::Status>;
    async fn count(&self) -> Result<u64, String>;
}

#[rpc::service(crate = "rpc")]
trait Quoted {
    async fn order(&self);
}

#[rpc::service(crate = rpc)]
trait Renamed {
    async fn order(&self, item: String) -> Result<Option<rpc::Bytes>, rpc::Status>;
    async fn count(&self) -> Result<u64, String>;
    #[offload]
    async fn pooled(&self, cx: &rpc::Context) -> u8;
}

#[facade::renamed::service(crate = facade::renamed, codec = facade::renamed::codec::Bincode)]
trait Reexported {
    async fn order(&self, item: String) -> Result<Option<rpc::Bytes>, rpc::Status>;
    async fn count(&self) -> Result<u64, String>;
}

fn in_a_function() {
    #[rpc::service(crate = crate::facade::renamed)]
    trait Local {
        async fn count(&self) -> Result<u64, String>;
    }
}

fn main() {}
