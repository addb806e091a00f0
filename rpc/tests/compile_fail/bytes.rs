//! Types named `Bytes` that are not trunkline's.

struct Bytes;

#[trunkline::service]
trait Raw {
    async fn put(&self, key: String, value: Bytes) -> u8;
}

fn main() {}
