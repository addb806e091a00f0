//! The program in `README.md`: a service, a server and a call.

#![allow(missing_docs, unreachable_pub, reason = "a user's program")]

use trunkline::{Node, Status};

#[trunkline::service]
pub trait Greeter {
    async fn greet(&self, name: String) -> Result<String, Status>;
}

struct Polite;

impl Greeter for Polite {
    async fn greet(&self, name: String) -> Result<String, Status> {
        Ok(format!("Good day, {name}!"))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Node::builder().listen("127.0.0.1:0").serve(GreeterServer::new(Polite)).start()?;
    let node = Node::builder().listen("127.0.0.1:0").start()?;
    let client = GreeterClient::new(node.channel(server.local_address()));
    println!("{}", trunkline::block_on(client.greet("trunk".into()))?);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn program_runs() {
        // All programs use the same address, and another user may have bound the device's port at this address.
        if let Err(error) = super::main() {
            assert!(error.to_string().contains("4791"), "{error}");
            println!("SKIPPED program_runs: {error}");
        }
    }
}
