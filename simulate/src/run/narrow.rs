//! A path whose MTU is smaller than the MTU of the interfaces at its ends. It silently drops larger packets.
//!
//! An additional node calls the first node over such a path. Each lost session lowers the path MTU of the next session by
//! one step, until calls of all sizes succeed. Calls from a successor of this node lose no further sessions.

use super::{Checked, Run, TRY};
use crate::coverage::EventKind;
use crate::oracle::TOO_LARGE;
use crate::workload::client::{Ask, Client};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Path MTUs whose packets fit the path with all headers, each with its number of steps below the largest path MTU.
const STEPS: [(usize, usize); 4] = [(256, 4), (512, 3), (1024, 2), (2048, 1)];
/// Maximum length of a packet's headers and ICRC, and of packets outside QPs.
const OVERHEAD: usize = 64;
/// Time limit of a call that may end with its session.
const PATIENCE: Duration = Duration::from_secs(10);
const CALLS: Duration = Duration::from_secs(30);

impl Run {
    /// Sends calls over a path that drops packets above a random size.
    pub(super) fn a_path_is_narrow(&mut self) -> Checked {
        let at = self.start_extra(|node| node)?;
        let (server, own) = (self.nodes[0].address, self.extra[at].address);
        let (mtu, steps) = STEPS[self.random.usize(..STEPS.len())];
        let carried = self.random.usize(mtu + OVERHEAD..=mtu * 2);
        self.scheduler.trace.line(
            self.scheduler.now(),
            "phase",
            format_args!("packets of {carried} bytes pass, and no larger ones"),
        );
        self.scheduler.network.set_narrow(Some((own.ip(), server.ip(), carried)));
        self.scheduler.oracle.set_narrow(true);
        let lost = Rc::new(Cell::new(0));
        for is_successor in [false, true] {
            if is_successor {
                self.extra[at].kill(&mut self.scheduler);
                self.extra[at].start(&mut self.scheduler, None);
            }
            let client = self.client_of(&self.extra[at], vec![server])?;
            let ended = self.program(client.process, calls(client, lost.clone()));
            self.within(CALLS, "calls over a narrow path do not end", |_| ended.get() == 1)?;
        }
        if lost.get() > steps {
            return Err(format!("{} sessions ended on the way to a path MTU of {mtu}", lost.get()));
        }
        self.scheduler.network.set_narrow(None);
        self.scheduler.oracle.set_narrow(false);
        self.scheduler.coverage.count(EventKind::NarrowPathCrossed);
        Ok(())
    }
}

/// Sends large calls until one succeeds, and then calls of several sizes, all of which must succeed. Counts the failures.
async fn calls(client: Client, lost: Rc<Cell<usize>>) {
    let server = client.servers[0];
    let large = Ask::echo(100 << 10, 100 << 10);
    while let Some(status) = client.call(server, PATIENCE, large).await {
        lost.set(lost.get() + 1);
        if !status.to_string().contains(TOO_LARGE) {
            return client
                .oracle
                .fail(format!("a call over a narrow path failed with another cause: {status}"));
        }
    }
    for ask in [Ask::Number, Ask::echo(3000, 3000), large, Ask::echo(10, 300 << 10), Ask::Tell(64)] {
        if let Some(status) = client.call(server, TRY, ask).await {
            client.oracle.fail(format!("a call failed over a path whose MTU was found: {status}"));
        }
    }
}
