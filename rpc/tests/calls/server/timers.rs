//! Timers, time limits, tasks and yielding on the poller's executor, and timers in the worker pool.

use crate::common::{Guard, events, pair, until};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use trunkline::{Code, Context, Elapsed, PollerContext, PollerIndex, Reason, Status, block_on};

#[trunkline::service]
trait Pause {
    /// Sleeps for `us`. Returns the elapsed time. Both are in microseconds.
    async fn poller(&self, us: u64) -> u64;
    #[offload]
    async fn offloaded(&self, us: u64) -> u64;
    #[blocking]
    async fn blocking(&self, us: u64) -> u64;
    /// Sleeps for longer than the time limit of the enclosing future.
    async fn limited(&self) -> Result<(), Status>;
    /// Moves its call to a task that outlives the handler.
    async fn leave(&self) -> u32;
}

#[derive(Default)]
struct Sleeper(Arc<AtomicU32>);

async fn took(us: u64) -> u64 {
    let began = Instant::now();
    trunkline::sleep(Duration::from_micros(us)).await;
    u64::try_from(began.elapsed().as_micros()).unwrap()
}

impl Pause for Sleeper {
    async fn poller(&self, us: u64) -> u64 {
        took(us).await
    }
    async fn offloaded(&self, us: u64) -> u64 {
        took(us).await
    }
    async fn blocking(&self, us: u64) -> u64 {
        took(us).await
    }
    async fn limited(&self) -> Result<(), Status> {
        let sleep = trunkline::sleep(Duration::from_secs(3600));
        trunkline::timeout(Duration::from_millis(2), sleep).await?;
        Ok(())
    }
    async fn leave(&self) -> u32 {
        let count = Arc::clone(&self.0);
        let own = Context::current().unwrap();
        drop(trunkline::spawn(async move {
            assert!(Context::current().is_none(), "a task is not part of the call");
            own.cancelled().await;
            count.fetch_add(1, Ordering::Relaxed);
        }));
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn sleep_takes_its_time_on_pollers_and_in_pool() {
    let (server, caller) = pair(PauseServer::new(Sleeper::default()));
    let client = PauseClient::connect(&caller, server.local_address()).unwrap();
    for us in [0, 1, 900, 3_000, 20_000] {
        for took in
            [block_on(client.poller(us)), block_on(client.offloaded(us)), block_on(client.blocking(us))]
                .map(Result::unwrap)
        {
            assert!(took >= us, "{took} of {us} us");
        }
    }
}

#[test]
fn future_beyond_timeout_is_dropped() {
    let (server, caller) = pair(PauseServer::new(Sleeper::default()));
    let client = PauseClient::connect(&caller, server.local_address()).unwrap();
    let status = block_on(client.limited()).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(Status::from(Elapsed).reason(), Some(Reason::Expired));
    let (reporter, told) = events();
    let late = server.run_on(PollerIndex(0), |_| async move {
        let guard = Guard(reporter);
        let future = async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        };
        let outcome = trunkline::timeout(Duration::from_millis(1), future).await;
        (outcome, trunkline::timeout(Duration::from_secs(3600), async { 7 }).await)
    });
    assert_eq!(block_on(late), Ok((Err(Elapsed), Ok(7))));
    assert_eq!(told.next(), "dropped");
}

#[test]
fn spawned_task_outlives_its_handler_and_need_not_be_send() {
    let handler = Sleeper::default();
    let count = Arc::clone(&handler.0);
    let (server, caller) = pair(PauseServer::new(handler));
    let client = PauseClient::connect(&caller, server.local_address()).unwrap();
    assert_eq!(block_on(client.leave()), Ok(0));
    until("the task runs", || (count.load(Ordering::Relaxed) == 1).then_some(()));
    let panicked = server.run_on(PollerIndex(0), |_| async {
        let shared = Rc::new(Cell::new(0));
        let of_task = Rc::clone(&shared);
        trunkline::spawn(async move { of_task.set(9) }).await.unwrap();
        assert_eq!(shared.get(), 9);
        trunkline::spawn(async { panic!("on purpose") }).await
    });
    assert_eq!(block_on(panicked).unwrap().unwrap_err().code(), Code::Internal);
    let (reporter, told) = events();
    let _begun = block_on(server.run_on(PollerIndex(0), |_| async move {
        let guard = Guard(reporter);
        drop(trunkline::spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        }));
    }));
    server.shutdown();
    assert_eq!(told.next(), "dropped");
}

#[test]
fn yielding_task_lets_calls_of_its_poller_run() {
    let (server, caller) = pair(PauseServer::new(Sleeper::default()));
    let client = PauseClient::connect(&caller, server.local_address()).unwrap();
    let stop = Arc::new(AtomicU32::new(0));
    let stops = Arc::clone(&stop);
    let busy = server.run_on(PollerIndex(0), |_| async move {
        let mut rounds = 0_u64;
        while stops.load(Ordering::Relaxed) == 0 {
            rounds += 1;
            trunkline::yield_now().await;
        }
        rounds
    });
    assert!(block_on(client.poller(0)).is_ok());
    stop.store(1, Ordering::Relaxed);
    assert!(block_on(busy).unwrap() > 0);
}

#[test]
fn timer_outside_node_is_refused_with_remedy() {
    let text = |run: fn()| {
        let panic = std::thread::spawn(run).join().unwrap_err();
        panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
    };
    let sleeps = text(|| drop(trunkline::sleep(Duration::ZERO))).unwrap();
    assert!(sleeps.contains("elsewhere use the timers of the executor"), "{sleeps}");
    let spawns = text(|| drop(trunkline::spawn(async {}))).unwrap();
    assert!(spawns.contains("elsewhere use an executor"), "{spawns}");
    assert!(PollerContext::current().is_none());
}
