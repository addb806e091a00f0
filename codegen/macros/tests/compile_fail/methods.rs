//! Methods that cannot be called remotely, each for one reason.

#[trunkline_macros::service]
trait Methods {
    async fn generic<T>(&self, value: T) -> Result<(), Status>;
    async fn bound(&self) -> Result<(), Status>
    where
        Self: Sized;
    async fn without_self() -> Result<(), Status>;
    async fn by_value(self) -> Result<(), Status>;
    async fn by_mutable_reference(&mut self) -> Result<(), Status>;
    async fn typed_self(self: &Self) -> Result<(), Status>;
    fn not_async(&self) -> Result<(), Status>;
    async unsafe fn not_safe(&self) -> Result<(), Status>;
    async extern "C" fn of_an_abi(&self) -> Result<(), Status>;
    async fn with_a_body(&self) -> Result<(), Status> {
        Ok(())
    }
    #[cfg(unix)]
    async fn sometimes(&self) -> Result<(), Status>;
    #[oneway]
    async fn one_way_with_an_answer(&self) -> Result<(), Status>;
    async fn same(&self) -> Result<(), Status>;
    async fn SAME(&self) -> Result<(), Status>;
    async fn r#same(&self) -> Result<(), Status>;
    async fn connect(&self) -> Result<(), Status>;
    async fn with(&self) -> Result<(), Status>;
    async fn with_timeout(&self) -> Result<(), Status>;
    async fn clone(&self) -> Result<(), Status>;
    async fn service(&self) -> Result<(), Status>;
}

#[trunkline_macros::service]
trait Arguments {
    async fn pattern(&self, (left, right): (u8, u8)) -> Result<(), Status>;
    async fn ignored(&self, _: u8) -> Result<(), Status>;
    async fn mutable(&self, mut number: u8) -> Result<(), Status>;
    async fn reference(&self, text: &str) -> Result<(), Status>;
    async fn opaque(&self, number: impl Copy) -> Result<(), Status>;
    async fn attribute(&self, #[allow(unused)] number: u8) -> Result<(), Status>;
    async fn answers_a_reference(&self) -> &'static str;
    async fn answers_never(&self) -> !;
    async fn many(
        &self,
        a: u8,
        b: u8,
        c: u8,
        d: u8,
        e: u8,
        f: u8,
        g: u8,
        h: u8,
        i: u8,
        j: u8,
        k: u8,
        l: u8,
        m: Bytes,
    ) -> Result<(), Status>;
}

fn main() {}
