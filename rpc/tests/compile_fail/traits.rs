//! Traits that are not a service, options that do not exist, and methods that cannot be called remotely: one case for each
//! error.

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

#[trunkline::service]
trait GenericMethod {
    async fn store<T>(&self, value: T) -> Result<(), Status>;
}

#[trunkline::service]
trait BoundMethod {
    async fn store(&self) -> Result<(), Status>
    where
        Self: Sized;
}

#[trunkline::service]
trait WithoutSelf {
    async fn store() -> Result<(), Status>;
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
    async fn into(&self);
    async fn try_into(&self);
}

#[trunkline::service]
trait Pattern {
    async fn store(&self, (left, right): (u8, u8));
}

#[trunkline::service]
trait Reference {
    async fn store(&self, text: &str);
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
trait Attribute {
    async fn store(&self, #[allow(unused)] number: u8);
}

#[trunkline::service]
trait ReferenceInAResult {
    async fn load(&self) -> Result<&'static str, Status>;
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

#[trunkline::service]
trait HandlerAsArgument {
    async fn store(&self, other: Self);
}

#[trunkline::service]
trait HandlerAsResult {
    async fn load(&self) -> Box<Self>;
}

#[trunkline::service]
trait Mutable {
    async fn store(&mut self);
}

#[trunkline::service]
trait ByValue {
    async fn store(self);
}

#[trunkline::service]
trait BySmartPointer {
    async fn store(self: std::rc::Rc<Self>);
}

#[trunkline::service]
trait MutableArgument {
    async fn store(&self, mut number: u8);
}

#[trunkline::service]
trait NamelessArgument {
    async fn store(&self, _: u8);
}

#[trunkline::service]
trait SameArguments {
    async fn store(&self, left: u8, left: u8, r#left: u8);
}

#[trunkline::service]
trait VisibleMethod {
    /// With a comment.
    pub(crate) async fn store(&self, number: u8);
    async fn load(&self) -> u8;
}

#[trunkline::service]
trait ManyVisible {
    pub async fn store(&self);
}

#[trunkline::service]
trait ConditionalArgument {
    async fn store(&self, #[cfg(unix)] number: u8);
}

#[trunkline::service]
trait DocumentedArgument {
    async fn store(
        &self,
        /// The number.
        number: u8,
    );
}

#[trunkline::service]
trait Unsized {
    async fn store(&self, text: str) -> Box<str>;
}

#[trunkline::service]
trait ListOfHandlers {
    async fn store(&self, others: Vec<Self>);
}

#[trunkline::service]
trait OpaqueResult {
    async fn load(&self) -> impl Copy;
}

#[trunkline::service]
trait ConstMethod {
    const fn store(&self);
}

#[trunkline::service]
trait TwoContexts {
    async fn store(&self, cx: &trunkline::Context, other: &trunkline::Context);
}

#[trunkline::service]
trait Lifetimes {
    async fn store(&self, text: std::borrow::Cow<'_, str>);
}

#[trunkline::service]
trait SameTwice {
    async fn store(&self);
    async fn store(&self, number: u8);
}

#[trunkline::service]
trait AssociatedWithin {
    async fn store(&self, number: <u8 as core::ops::Add>::Output, other: &u8);
}

struct Status;

fn main() {}
