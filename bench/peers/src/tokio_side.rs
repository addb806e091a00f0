//! Common parts of the systems based on tokio: the runtime, and one task per call in flight.
//!
//! If a side has a separate core, its runtime has a single thread, which polls instead of sleeping, like Trunkline's
//! pollers while they have work. Otherwise the runtime is an ordinary one, which sleeps when idle.
//! while they have work. Otherwise the runtime is an ordinary one, which sleeps when idle.

use crate::meter::pin;
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::{Stopwatch, nanoseconds};
use crate::meter::usage::{self, Usage};
use crate::{Exchange, server};
use bytes::Bytes;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

pub(crate) trait Caller: Clone + Send + 'static {
    fn call(&mut self, request: Bytes, reply: usize) -> impl Future<Output = Result<usize, String>> + Send;
}

fn runtime(exchange: &Exchange) -> Result<Runtime, String> {
    let built = match exchange.workers {
        Some(workers) => Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
        None => Builder::new_current_thread().enable_all().build(),
    };
    let runtime = built.map_err(|error| format!("cannot start tokio: {error}"))?;
    if exchange.workers.is_none() {
        // As long as a task is ready, the runtime polls for events without waiting.
        runtime.spawn(async {
            loop {
                yield_now().await;
            }
        });
    }
    Ok(runtime)
}

/// Serves on the side's core until standard input is closed.
///
/// # Errors
/// Returns an error if the thread cannot be pinned, or errors from the runtime or the server.
pub(crate) fn serve(
    exchange: &Exchange,
    server: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    exchange.cores().map_or(Ok(()), |cores| pin::to(cores.server))?;
    let (ended, end) = futures::channel::oneshot::channel::<()>();
    server::at_end(|| drop(ended));
    runtime(exchange)?.block_on(async {
        tokio::select! {
            served = server => served,
            _end = end => Ok(()),
        }
    })
}

/// Measures calls.
///
/// # Errors
/// Returns an error if a call fails.
pub(crate) fn measure<C: Caller>(
    exchange: &Exchange,
    connect: impl Future<Output = Result<C, String>>,
) -> Result<Sample, String> {
    runtime(exchange)?.block_on(async {
        let caller = connect.await?;
        let recorder = Recorder::new(nanoseconds(exchange.measured())).mean(exchange.load.is_any());
        let (recorder, watch) = (Arc::new(Mutex::new(recorder)), Stopwatch::start());
        let (request, reply) = (Bytes::from(vec![1; exchange.size]), exchange.reply);
        let work = |mut caller: C, recorder: Arc<Mutex<Recorder>>, request: Bytes| async move {
            loop {
                let began_ns = watch.now_ns();
                let ended = caller.call(request.clone(), reply).await;
                let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
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
            .map(|_| tokio::spawn(work(caller.clone(), Arc::clone(&recorder), request.clone())))
            .collect::<Vec<_>>();
        for task in tasks {
            task.await.map_err(|error| error.to_string())?;
        }
        let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *recorder, Recorder::new(0)).finish()
    })
}

/// Measures the resource usage of both sides at a fixed call rate, with additional idle connections.
///
/// # Errors
/// Returns an error if a call fails.
pub(crate) fn rest<C: Caller, F: Future<Output = Result<C, String>>>(
    exchange: &Exchange,
    server: u32,
    rate: f64,
    sessions: u16,
    connect: impl Fn() -> F,
) -> Result<Usage, String> {
    let runtime = runtime(exchange)?;
    let (request, reply) = (Bytes::from(vec![1; exchange.size]), exchange.reply);
    let connected = || {
        runtime.block_on(async {
            let mut caller = connect().await?;
            caller.call(request.clone(), reply).await?;
            Ok::<_, String>(caller)
        })
    };
    let _idle = (0..sessions).map(|_| connected()).collect::<Result<Vec<_>, _>>()?;
    let mut caller = connected()?;
    usage::measure(server, rate, exchange.measured(), || {
        runtime.block_on(caller.call(request.clone(), reply)).map(drop)
    })
}
