//! The calls of a node to one target: before, during and after the measurement.

use super::service::{Load, Measured};
use crate::calls::echo::EchoLocal;
use crate::calls::worker::{Exchange, Measurement, Plan};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trunkline::PollerContext;

/// Index of the measured phase.
const MEASURED: usize = 1;

/// The calls to one target. All tasks that make them pass through the phases together.
#[derive(Debug)]
pub(super) struct TargetLoad {
    target: SocketAddr,
    plans: [Plan; 3],
    phases: [OnceLock<Measurement>; 3],
    is_stopped: AtomicBool,
}

impl TargetLoad {
    pub(super) fn new(target: SocketAddr, load: &Load) -> Self {
        let exchange = if load.one_way { Exchange::OneWay } else { Exchange::Echo };
        let size = usize::try_from(load.bytes).unwrap_or(usize::MAX);
        let outstanding = usize::try_from(load.outstanding).unwrap_or(usize::MAX);
        let plan = |measured| Plan::closed_loop(exchange, size, outstanding, measured);
        let margin = plan(load.margin());
        Self {
            target,
            plans: [margin, plan(Duration::from_secs_f64(load.seconds)), margin],
            phases: Default::default(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Makes one call after another until the last phase is over.
    pub(super) async fn work(&self, context: PollerContext) {
        let calls = match EchoLocal::connect(&context, self.target) {
            Ok(calls) => calls,
            Err(status) => return self.stop(&format!("a call failed: {status}")),
        };
        for (plan, phase) in self.plans.iter().zip(&self.phases) {
            if self.is_stopped.load(Ordering::Relaxed) {
                return;
            }
            phase.get_or_init(|| Measurement::begin(*plan)).work(&calls).await;
        }
    }

    /// Ends the load early.
    pub(super) fn stop(&self, why: &str) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Before the measured phase, an empty measurement carries the reason.
        let measured = self.phases[MEASURED].get_or_init(|| Measurement::begin(self.plans[MEASURED]));
        for phase in [self.phases[0].get(), Some(measured), self.phases[2].get()].into_iter().flatten() {
            phase.failed(why.to_owned());
        }
    }

    /// Returns the results. Call it when all tasks have ended.
    pub(super) fn measured(&self) -> Measured {
        let before = self.phases[0].get().and_then(|phase| phase.finish_partly().1);
        let (sample, failed) = self.phases[MEASURED].get().map_or((None, None), Measurement::finish_partly);
        let times = sample.as_ref().map_or_else(Vec::new, |sample| {
            let recorded = sample.times.iter_recorded();
            recorded.map(|at| (at.value_iterated_to(), at.count_at_value())).collect()
        });
        Measured {
            target: self.target.to_string(),
            times,
            per_s: sample.map_or(0.0, |sample| sample.per_s),
            failed: before.or(failed),
        }
    }
}
