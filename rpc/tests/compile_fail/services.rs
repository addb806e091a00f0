//! Traits that are not a service, and options that do not exist or do not parse.

#[trunkline::service]
trait WithAType {
    type Kind;
}

#[trunkline::service]
trait WithAConstant {
    const NUMBER: u8;
}

#[trunkline::service]
trait Generic<T> {
    async fn store(&self, value: T);
}

#[trunkline::service]
trait Extending: Send {}

#[trunkline::service]
trait Bound
where
    Self: Sized,
{
}

#[trunkline::service]
unsafe trait Unsafe {}

#[trunkline::service(name = "")]
trait Nameless {}

#[trunkline::service(colour = "red")]
trait Unknown {}

#[trunkline::service("red")]
trait Literal {}

#[trunkline::service(version = -1)]
trait Negative {}

#[trunkline::service(version = 4_294_967_296)]
trait TooNew {}

#[trunkline::service(version = "1")]
trait Text {}

#[trunkline::service(name = "a", name = "b")]
trait Twice {}

#[trunkline::service(name = 5)]
trait Number {}

#[trunkline::service(version = 3, accepts = 1..=2)]
trait Outdated {}

#[trunkline::service(version = 3, accepts = 2)]
trait NoRange {}

#[trunkline::service(codec = 7)]
trait NoCodec {}

/// A wrong option hides neither the next one nor an error in the trait.
#[trunkline::service(color = red blue, version = "2")]
trait SeveralErrors {
    fn first(&self);
    async fn second(&self, text: &str);
    async fn right(&self);
}

struct Handler;

/// The trait is there in spite of its errors.
impl SeveralErrors for Handler {
    fn first(&self) {}
    async fn second(&self, _: &str) {}
    async fn right(&self) {}
}

#[trunkline::service]
struct NoTrait;

fn main() {}
