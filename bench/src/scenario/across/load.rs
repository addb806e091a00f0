//! Load from a node on one target, in calls or in a TCP stream, before, during and after the measurement.

use super::service::{Load, Measured, SMALL};
use super::tcp;
use crate::calls::echo::EchoLocal;
use crate::calls::worker::{Exchange, Measurement, Plan};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use trunkline::PollerContext;

/// Index of the measured phase.
const MEASURED: usize = 1;

#[derive(Debug)]
pub(super) struct TargetLoad {
    target: SocketAddr,
    bulk: Phases,
    small: Phases,
    /// Rate of the TCP stream, in payloads per second.
    streamed: OnceLock<Result<f64, String>>,
    is_stopped: AtomicBool,
}

/// Calls of one kind in three phases. All tasks that make these calls change phases together.
#[derive(Debug)]
struct Phases {
    plans: [Plan; 3],
    measurements: [OnceLock<Measurement>; 3],
}

impl TargetLoad {
    pub(super) fn new(target: SocketAddr, load: &Load) -> Self {
        let exchange = if load.one_way { Exchange::OneWay } else { Exchange::Echo };
        let size = usize::try_from(load.bytes).unwrap_or(usize::MAX);
        let outstanding = usize::try_from(load.outstanding).unwrap_or(usize::MAX);
        Self {
            target,
            bulk: Phases::new(load, |measured| Plan::closed_loop(exchange, size, outstanding, measured)),
            small: Phases::new(load, |measured| Plan::closed_loop(Exchange::Echo, SMALL, 1, measured)),
            streamed: OnceLock::new(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Makes one call after another until the last phase is over.
    pub(super) async fn work(&self, context: PollerContext, is_small: bool) {
        let calls = match EchoLocal::connect(&context, self.target) {
            Ok(calls) => calls,
            Err(status) => return self.stop(&format!("a call failed: {status}")),
        };
        let Phases { plans, measurements } = if is_small { &self.small } else { &self.bulk };
        for (plan, measurement) in plans.iter().zip(measurements) {
            if self.is_stopped.load(Ordering::Relaxed) {
                return;
            }
            measurement.get_or_init(|| Measurement::begin(*plan)).work(&calls).await;
        }
    }

    /// Sends over TCP until the last phase is over.
    pub(super) fn stream(&self, load: &Load) {
        self.streamed.get_or_init(|| tcp::stream(self.target, load, &self.is_stopped));
    }

    /// Ends the load early.
    pub(super) fn stop(&self, why: &str) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.bulk.stop(why);
        self.small.stop(why);
    }

    /// Returns the results. All tasks must have ended before.
    pub(super) fn measured(&self) -> Measured {
        let target = self.target.to_string();
        if let Some(streamed) = self.streamed.get() {
            let (goodput_per_s, failed) = match streamed {
                Ok(per_s) => (*per_s, None),
                Err(why) => (0.0, Some(why.clone())),
            };
            return Measured {
                target,
                times: Vec::new(),
                per_s: 0.0,
                goodput_per_s,
                small: Vec::new(),
                failed,
            };
        }
        let goodput_per_s = self.bulk.measurements[MEASURED].get().map_or(0.0, Measurement::mean_per_s);
        let (times, per_s, failed) = self.bulk.measured();
        let (small, _, small_failed) = self.small.measured();
        Measured { target, times, per_s, goodput_per_s, small, failed: failed.or(small_failed) }
    }
}

impl Phases {
    fn new(load: &Load, plan: impl Fn(Duration) -> Plan) -> Self {
        let margin = plan(load.margin());
        let plans = [margin, plan(Duration::from_secs_f64(load.seconds)), margin];
        Self { plans, measurements: Default::default() }
    }

    fn stop(&self, why: &str) {
        // If the measured phase has not begun, an empty measurement stores the reason.
        self.measurements[MEASURED].get_or_init(|| Measurement::begin(self.plans[MEASURED]));
        for measurement in self.measurements.iter().filter_map(OnceLock::get) {
            measurement.failed(why.to_owned());
        }
    }

    /// Returns the times, the rate, and the reason for an early end, if any.
    fn measured(&self) -> (Vec<(u64, u64)>, f64, Option<String>) {
        let before = self.measurements[0].get().and_then(|measurement| measurement.finish_partly().1);
        let measured = self.measurements[MEASURED].get().map(Measurement::finish_partly);
        let (sample, failed) = measured.unwrap_or_default();
        let times = sample.as_ref().map_or_else(Vec::new, |sample| {
            let recorded = sample.times.iter_recorded();
            recorded.map(|at| (at.value_iterated_to(), at.count_at_value())).collect()
        });
        (times, sample.map_or(0.0, |sample| sample.per_s), before.or(failed))
    }
}
