//! Parts common to systems on tokio: a single-threaded runtime that polls instead of sleeping, as our pollers do while
//! they have work, and one task for each call under way.

use crate::recorder::{Recorder, Sample};
use crate::stopwatch::{Stopwatch, nanoseconds};
use crate::{Exchange, child, pin};
use bytes::Bytes;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use tokio::task::{LocalSet, spawn_local, yield_now};

/// Makes calls.
pub(crate) trait Caller: Clone + 'static {
    /// Sends a request, and returns the length of the reply.
    fn call(&mut self, request: Bytes, reply: usize) -> impl Future<Output = Result<usize, String>>;
}

/// Runs one side until its future ends.
///
/// # Errors
/// Returns errors of the runtime and of the future.
pub(crate) fn run<T>(side: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start tokio: {error}"))?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        // While a task is ready, the runtime polls for events without waiting.
        spawn_local(async {
            loop {
                yield_now().await;
            }
        });
        side.await
    })
}

/// Serves on the side's core until the end of standard input.
///
/// # Errors
/// Fails if the thread cannot be pinned, or with an error of the runtime or the server.
pub(crate) fn serve(
    exchange: &Exchange,
    server: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    exchange.cores().map_or(Ok(()), |cores| pin::to(cores.server))?;
    let (ended, end) = futures::channel::oneshot::channel::<()>();
    child::at_end(|| drop(ended));
    run(async {
        tokio::select! {
            served = server => served,
            _end = end => Ok(()),
        }
    })
}

/// Measures calls.
///
/// # Errors
/// Fails with the reason if a call fails.
pub(crate) async fn measure(caller: impl Caller, exchange: &Exchange) -> Result<Sample, String> {
    let recorder = Rc::new(RefCell::new(Recorder::new(nanoseconds(exchange.measured()))));
    let (watch, request, reply) = (Stopwatch::start(), Bytes::from(vec![1; exchange.size]), exchange.reply);
    let work = |mut caller, recorder: Rc<RefCell<Recorder>>, request: Bytes| async move {
        loop {
            let began_ns = watch.now_ns();
            let ended = Caller::call(&mut caller, request.clone(), reply).await;
            let mut recorder = recorder.borrow_mut();
            match ended {
                Ok(bytes) if bytes == reply => {}
                Ok(bytes) => recorder.failed(format!("a reply has {bytes} bytes, not {reply}")),
                Err(why) => recorder.failed(format!("a call failed: {why}")),
            }
            if !recorder.ended(began_ns, watch.now_ns()) {
                return;
            }
        }
    };
    let tasks = (0..exchange.outstanding)
        .map(|_| spawn_local(work(caller.clone(), Rc::clone(&recorder), request.clone())))
        .collect::<Vec<_>>();
    for task in tasks {
        task.await.map_err(|error| error.to_string())?;
    }
    recorder.replace(Recorder::new(0)).finish()
}
