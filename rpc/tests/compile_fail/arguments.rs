//! Arguments and results that cannot be sent, as they are written: each trait is wrong for one reason.

#[trunkline::service]
trait Pattern {
    async fn store(&self, (left, right): (u8, u8));
}

#[trunkline::service]
trait Ignored {
    async fn store(&self, _: u8);
}

#[trunkline::service]
trait Mutable {
    async fn store(&self, mut number: u8);
}

#[trunkline::service]
trait Reference {
    async fn store(&self, text: &str);
}

#[trunkline::service]
trait Borrows {
    async fn store(&self, text: std::borrow::Cow<'_, str>);
}

#[trunkline::service]
trait BorrowsWithin {
    async fn store(&self, texts: Vec<(u8, &str)>);
}

#[trunkline::service]
trait BorrowsAsResult {
    async fn load(&self) -> Option<Vec<&str>>;
}

#[trunkline::service]
trait Opaque {
    async fn store(&self, number: impl Copy);
}

#[trunkline::service]
trait Object {
    async fn store(&self, number: dyn Send);
}

#[trunkline::service]
trait Pointer {
    async fn store(&self, number: *const u8);
}

#[trunkline::service]
trait Function {
    async fn store(&self, then: fn());
}

#[trunkline::service]
trait Attribute {
    async fn store(&self, #[allow(unused)] number: u8);
}

#[trunkline::service]
trait ReferenceAsResult {
    async fn load(&self) -> &'static str;
}

#[trunkline::service]
trait ReferenceInAResult {
    async fn load(&self) -> Result<&'static str, Status>;
}

#[trunkline::service]
trait OpaqueResult {
    async fn load(&self) -> impl Copy;
}

#[trunkline::service]
trait NoResult {
    async fn load(&self) -> !;
}

#[trunkline::service]
#[allow(clippy::too_many_arguments)]
trait Many {
    async fn store(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8, j: u8, k: u8, l: u8, m: u8);
}

struct Status;

fn main() {}
