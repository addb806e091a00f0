//! Types by another name, and types with the name of another: each trait is wrong for one reason.

use trunkline::{Context as Call, Status};

type ShopResult<T> = Result<T, Status>;
type Checked = Result<u8, String>;
type Text = &'static str;
type Texts = Vec<&'static str>;

#[trunkline::service]
trait AliasOfAResult {
    async fn order(&self, item: String) -> ShopResult<u64>;
}

#[trunkline::service]
trait AliasWithoutParameters {
    async fn order(&self) -> Checked;
}

#[trunkline::service]
trait BorrowedResult {
    async fn names(&self) -> Vec<&'static str>;
}

#[trunkline::service]
trait BorrowedError {
    async fn names(&self) -> Result<u8, &'static str>;
}

#[trunkline::service]
trait BorrowedWithinAnError {
    async fn names(&self) -> Result<u8, Option<Vec<&'static str>>>;
}

#[trunkline::service]
trait BoxedError {
    async fn order(&self) -> Result<u8, Box<dyn std::error::Error>>;
}

#[trunkline::service]
trait ForeignError {
    async fn order(&self) -> std::io::Result<u8>;
}

#[trunkline::service]
trait StatusAsAnArgument {
    async fn order(&self, status: Status) -> u8;
}

#[trunkline::service]
trait ContextByValue {
    async fn order(&self, cx: trunkline::Context) -> u8;
}

#[trunkline::service]
trait ContextByAnotherName {
    async fn order(&self, cx: &Call) -> u8;
}

#[trunkline::service]
trait MutableContext {
    async fn order(&self, cx: &mut trunkline::Context) -> u8;
}

#[trunkline::service]
trait LifetimeOfAMethod {
    async fn order<'a>(&'a self) -> u8;
}

#[trunkline::service]
trait LifetimeOfATrait<'a> {
    async fn order(&self, item: std::borrow::Cow<'a, str>) -> u8;
}

#[trunkline::service]
trait Future {
    fn order(&self) -> impl core::future::Future<Output = u8>;
}

#[trunkline::service]
trait Closure {
    async fn order(&self, done: Box<dyn Fn(u8)>) -> u8;
}

#[trunkline::service]
trait AliasOfAReference {
    async fn order(&self, item: Text) -> u8;
}

#[trunkline::service]
trait AliasOfReferences {
    async fn order(&self) -> Texts;
}

type Refusal = &'static str;
type Keyed = std::collections::BTreeMap<&'static str, u8>;

#[trunkline::service]
trait AliasOfABorrowedError {
    async fn order(&self) -> Result<u8, Refusal>;
}

#[trunkline::service]
trait AliasWithinAnother {
    async fn order(&self, items: Option<Vec<Text>>, names: Keyed) -> u8;
}

type Pair = (u8, &'static str);

#[trunkline::service]
trait AliasOfATuple {
    async fn order(&self, item: Pair) -> u8;
}

type Labels = Vec<(&'static str, u8)>;

#[trunkline::service]
trait AliasOfTuples {
    async fn order(&self) -> Result<Labels, Pair>;
}

#[trunkline::service]
trait SelfWithinATuple {
    async fn order(&self, items: Option<(u8, Vec<Self>)>) -> u8;
}

#[trunkline::service]
trait LifetimeOfATraitInAResult<'a> {
    async fn order(&self) -> Result<std::borrow::Cow<'a, str>, Status>;
}

/// As the crate, without the library's feature for it.
mod anyhow {
    pub struct Error;
    pub type Result<T, E = Error> = core::result::Result<T, E>;
}

#[trunkline::service]
trait ReportWithoutTheFeature {
    async fn order(&self) -> anyhow::Result<u8>;
}

#[trunkline::service]
trait ReportAsAnError {
    async fn order(&self) -> Result<u8, anyhow::Error>;
}

mod own {
    use trunkline::{Bytes, Status};

    pub struct Result<T, E = Status>(T, E);
    pub struct Option<T>(T);

    #[trunkline::service]
    trait OwnResult {
        async fn order(&self) -> Result<u8, Status>;
    }

    #[trunkline::service]
    trait OwnResultWithAnotherError {
        async fn order(&self) -> Result<u8, String>;
    }

    #[trunkline::service]
    trait OwnResultWithADefault {
        async fn order(&self) -> Result<u8>;
    }

    #[trunkline::service]
    trait OwnOption {
        async fn get(&self) -> Option<Bytes>;
    }
}

mod swapped {
    type Result<E> = core::result::Result<u8, E>;

    #[trunkline::service]
    trait AliasOfTheSuccess {
        async fn order(&self) -> Result<String>;
    }
}

fn main() {}
