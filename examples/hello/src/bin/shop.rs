//! The program of the book's second tutorial: three services of a shop, and a customer.

#![allow(missing_docs, unreachable_pub, reason = "a user's program")]

use serde::{Deserialize, Serialize};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use trunkline::stream::{self, Stream};
use trunkline::{CallError, CallOptions, Connect, Context, Metadata, Node, NodeBuilder, Policy, Status};

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum StockError {
    #[error("only {0} lamps left")]
    SoldOut(u32),
}

#[trunkline::service]
pub trait Stock {
    async fn take(&self, count: u32) -> Result<(), StockError>;
}

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum PaymentError {
    #[error("card declined")]
    Declined,
}

#[trunkline::service]
pub trait Payment {
    async fn charge(&self, cx: &Context, card: String, cents: u32) -> Result<(), PaymentError>;
}

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
pub enum OrderError {
    #[error("stock: {0}")]
    Stock(#[from] CallError<StockError>),
    #[error("payment: {0}")]
    Payment(#[from] CallError<PaymentError>),
}

#[trunkline::service]
pub trait Orders {
    async fn order(&self, cx: &Context, count: u32, card: String) -> Result<u32, OrderError>;
    async fn track(&self, order: u32) -> Result<impl Stream<Item = Result<String, Status>>, Status>;
}

struct Shelf(AtomicU32);

impl Stock for Shelf {
    async fn take(&self, count: u32) -> Result<(), StockError> {
        let taken = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(count));
        taken.map(drop).map_err(StockError::SoldOut)
    }
}

struct Bank;

impl Payment for Bank {
    async fn charge(&self, cx: &Context, card: String, cents: u32) -> Result<(), PaymentError> {
        println!("payment: {cents} cents from {}'s card {card}", customer(cx));
        match card.as_str() {
            "expired" => Err(PaymentError::Declined),
            "slow" => {
                let _abandoned = Abandoned; // dropped with the handler
                std::future::pending().await
            }
            _ => Ok(()),
        }
    }
}

fn customer(cx: &Context) -> &str {
    cx.metadata().get("customer").unwrap_or("unknown")
}

struct Abandoned;

impl Drop for Abandoned {
    fn drop(&mut self) {
        println!("payment: abandoned");
    }
}

struct Desk {
    stock: StockClient,
    payment: PaymentClient,
    orders: AtomicU32,
}

impl Orders for Desk {
    async fn order(&self, cx: &Context, count: u32, card: String) -> Result<u32, OrderError> {
        println!("orders: {count} lamps for {}", customer(cx));
        let options = CallOptions::new().metadata(cx.metadata().clone()).connect(Connect::Wait);
        self.stock.with(&options).take(count).await?;
        self.payment.with(&options).charge(card, count * 3999).await?;
        Ok(self.orders.fetch_add(1, Relaxed) + 1)
    }

    async fn track(&self, order: u32) -> Result<impl Stream<Item = Result<String, Status>>, Status> {
        if order == 0 || order > self.orders.load(Relaxed) {
            return Err(Status::not_found(format!("order {order}")));
        }
        let (sender, steps) = stream::channel(1);
        trunkline::spawn(async move {
            for step in ["packed", "sent", "delivered"] {
                trunkline::sleep(Duration::from_millis(300)).await;
                if sender.send(Ok(format!("order {order}: {step}"))).await.is_err() {
                    return; // the customer has gone
                }
            }
            sender.finish();
        });
        Ok(steps)
    }
}

fn orders(builder: NodeBuilder, stock: SocketAddr, payments: Vec<SocketAddr>) -> NodeBuilder {
    let desk = Desk {
        stock: StockClient::new(builder.channel(stock)),
        payment: PaymentClient::new(builder.channel(payments).balanced(Policy::RoundRobin)),
        orders: AtomicU32::new(0),
    };
    builder.serve(OrdersServer::new(desk))
}

async fn buy(orders: &OrdersClient, count: u32, card: &str, limit: Duration) -> Result<(), Status> {
    let mut metadata = Metadata::new();
    metadata.insert("customer", "ada")?;
    let options = CallOptions::new().metadata(metadata).timeout(limit).connect(Connect::Wait);
    match orders.with(&options).order(count, card.into()).await {
        Ok(order) => {
            let mut steps = orders.track(order).await?;
            while let Some(step) = steps.message().await? {
                println!("{step}");
            }
        }
        Err(CallError::Handler(error)) => println!("refused: {error}"),
        Err(CallError::Status(status)) => {
            println!("failed: {:?}, may have run: {}", status.code(), status.may_have_run());
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let builder = match arguments[..] {
        ["stock", address] => {
            Node::builder().listen(address).serve(StockServer::new(Shelf(AtomicU32::new(5))))
        }
        ["payment", address] => Node::builder().listen(address).serve(PaymentServer::new(Bank)),
        ["orders", address, stock, ref payments @ ..] => {
            let payments = payments.iter().map(|payment| payment.parse()).collect::<Result<_, _>>()?;
            orders(Node::builder().listen(address), stock.parse()?, payments)
        }
        ["buy", address, count, card, seconds] => {
            let node = Node::builder().start()?;
            let client = OrdersClient::connect(&node, address)?;
            let limit = Duration::from_secs(seconds.parse()?);
            return Ok(trunkline::block_on(buy(&client, count.parse()?, card, limit))?);
        }
        _ => return Err("expected stock, payment, orders or buy, and their arguments".into()),
    };
    let _node = builder.start()?;
    loop {
        std::thread::park(); // the node serves until the process is killed
    }
}
