//! Errors of methods that cannot be sent.

struct Refusal;

#[trunkline::service]
trait Own {
    async fn refuse(&self, number: u8) -> Result<u8, Refusal>;
}

mod other {
    pub struct Status;

    #[trunkline::service]
    trait NamedStatus {
        async fn refuse(&self) -> Result<(), Status>;
    }
}

fn main() {}
