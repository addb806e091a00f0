//! A host on the path between two nodes with identities that changes, swaps or repeats packets.
//!
//! | rule | violated when |
//! |---|---|
//! | the receiver refuses changed packets | its session does not end, or ends with another cause |
//! | the sender is notified | the sender's session ends with another cause |
//! | other calls are unaffected | a program receives other bytes than were sent (`oracle/mod.rs`), or no further call succeeds |

use super::absence::RETURNS;
use super::{Checked, Run, TRY};
use crate::coverage::EventKind;
use crate::network::tampering::{Tamperer, Tampering};
use crate::plan::NodePlan;
use crate::workload::client::{Ask, Client};
use std::time::Duration;

/// Number of concurrent programs.
const PROGRAMS: usize = 8;
/// Number of calls per program.
const CALLS: usize = 6;
const LARGE: Ask = Ask::Echo { there: 40 << 10, back: 64, wait_us: 0 };
const STAGE: Duration = Duration::from_secs(10);
/// Cause reported by the sender.
const AT_SENDER: &str =
    "the peer closed the session, and says: a sealed frame or message of this node arrived changed";

impl Run {
    /// Lets a host on the path change packets from one node to another.
    pub(super) fn one_tampers(&mut self) -> Checked {
        let tampering = Tampering::ALL[self.random.usize(..Tampering::ALL.len())];
        self.scheduler.trace.line(self.scheduler.now(), "phase", format_args!("its change: {tampering:?}"));
        let two_pollers = |node| NodePlan { pollers: 2, ..node };
        let (from, to) = (self.start_extra(two_pollers)?, self.start_extra(two_pollers)?);
        let [sender, receiver] = [from, to].map(|at| self.extra[at].address);
        let tamperer = Tamperer::new(sender.ip(), receiver.ip(), self.random.u64(..));
        self.scheduler.network.set_tamperer(Some(tamperer));
        let client = self.client_of(&self.extra[from], vec![receiver])?;
        let reach = |run: &mut Self| {
            let reached = client.clone().until_reached(receiver);
            run.scheduler.tasks.add(client.process, reached);
            run.programs_end(RETURNS, "a node behind a host that tampers is not reached")?;
            run.call_behind(&client)
        };
        reach(self)?;
        if tampering == Tampering::OtherSession {
            self.scheduler.network.with_tamperer(Tamperer::session_ended);
            self.extra[to].kill(&mut self.scheduler);
            self.extra[to].start(&mut self.scheduler, None);
            reach(self)?;
        }
        let _earlier = self.scheduler.trace.ended_sessions();
        self.scheduler.network.with_tamperer(|host| host.change(tampering));
        self.call_behind(&client)?;
        if self.scheduler.network.with_tamperer(|host| host.is_done()) != Some(true) {
            return Err(format!("a host on the path found nothing for {tampering:?}"));
        }
        self.scheduler.network.set_tamperer(None);
        self.scheduler.coverage.count(EventKind::PathTampered);
        let what = if tampering.is_of_large() { "piece of a large message" } else { "sealed frame" };
        let refused = format!("{what} that does not open: it was changed");
        let ended = self.scheduler.trace.ended_sessions();
        for (peer, cause) in [(sender, refused.as_str()), (receiver, AT_SENDER)] {
            let mut causes = ended.iter().filter(|(lost, _)| *lost == peer).map(|(_, cause)| cause);
            if !causes.next().is_some_and(|first| first.contains(cause)) {
                return Err(format!(
                    "after {tampering:?} the first end of a session with {peer} is not \"{cause}\": {ended:?}"
                ));
            }
        }
        reach(self)
    }

    /// Sends small and large calls from a node, and waits until all of them have ended.
    fn call_behind(&mut self, client: &Client) -> Checked {
        for _ in 0..PROGRAMS {
            let client = client.clone();
            self.scheduler.tasks.add(client.process, async move {
                for ask in [Ask::Number, LARGE].into_iter().cycle().take(CALLS) {
                    let _whatever = client.call(client.servers[0], TRY, ask).await;
                }
            });
        }
        self.programs_end(STAGE, "calls behind a host that tampers do not end")
    }
}
