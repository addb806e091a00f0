//! Traits that are not a service, and options that do not exist or do not parse.

#[trunkline_macros::service]
trait Members {
    type Kind;
    const NUMBER: u8;
}

#[trunkline_macros::service]
trait Generic<T>: Send
where
    T: Copy,
{
}

#[trunkline_macros::service]
unsafe trait Unsafe {}

#[trunkline_macros::service(name = "")]
trait Nameless {}

#[trunkline_macros::service(colour = "red")]
trait Unknown {}

#[trunkline_macros::service(version = -1)]
trait Negative {}

#[trunkline_macros::service(version = 4_294_967_296)]
trait TooNew {}

#[trunkline_macros::service(version = "1")]
trait Text {}

#[trunkline_macros::service(name = "a", name = "b")]
trait Twice {}

#[trunkline_macros::service(name = 5)]
trait Number {}

#[trunkline_macros::service]
struct NoTrait;

fn main() {}
