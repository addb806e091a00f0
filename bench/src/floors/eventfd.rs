//! Wake-ups of threads that sleep in the kernel.

use super::{Shape, pause, with_sleeping_server};
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::{Stopwatch, nanoseconds};
use nix::sys::eventfd::EventFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Measures two threads on the client's core that wake each other.
pub(super) fn same_core(shape: &Shape) -> Result<Sample, String> {
    between(shape, shape.cores.map(|cores| cores.client))
}

/// Measures two threads on separate cores that wake each other.
pub(super) fn cross_core(shape: &Shape) -> Result<Sample, String> {
    between(shape, shape.cores.map(|cores| cores.server))
}

fn between(shape: &Shape, core: Option<usize>) -> Result<Sample, String> {
    let made = || EventFd::new().map_err(|error| error.to_string());
    let (there, back) = (made()?, made()?);
    let serve = |stop: &AtomicBool| {
        loop {
            there.read().map_err(|error| error.to_string())?;
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            back.write(1).map_err(|error| error.to_string())?;
        }
    };
    let measure = |watch: Stopwatch| {
        let mut recorder = Recorder::new(nanoseconds(shape.measured));
        loop {
            pause(shape);
            let began = watch.now_ns();
            there.write(1).and_then(|_| back.read()).map_err(|error| error.to_string())?;
            if !recorder.ended(began, watch.now_ns()) {
                return recorder.finish();
            }
        }
    };
    with_sleeping_server(core, serve, measure, || {
        let _woken = there.write(1);
    })
}
