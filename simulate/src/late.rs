//! Calls whose poller is busy when their request should leave.

use crate::client::Client;
use crate::coverage::Kind;
use crate::oracle::{Open, pattern};
use crate::service::WorkLocal;
use std::net::SocketAddr;
use std::time::Duration;
use trunkline::{Code, PollerIndex, Status};

/// Time limit of a call that may share a frame with a late one.
const PATIENCE: Duration = Duration::from_secs(1);

impl Client {
    /// Makes a call from a poller's task, small or large, and then keeps the poller busy, mostly until after
    /// the call's deadline. The request is staged in that turn of the poller, and would leave when the task
    /// returns. A small request mostly shares its frame with the request of a call that is not late.
    pub(crate) async fn late(&mut self, server: SocketAddr) {
        let timeout = Duration::from_micros(self.random.u64(500..4_000));
        let busy = Duration::from_micros(self.random.u64(1_000..8_000));
        let bytes = if self.random.bool() { self.random.usize(..300) } else { 40 << 10 };
        let poller = PollerIndex(self.random.u16(..self.pollers));
        let id = self.oracle.made(self.process, server, "echo from a busy poller", timeout);
        let open = Open::new(&self.oracle, id);
        let shares = bytes < 300 && self.random.u8(..4) > 0;
        let beside = shares.then(|| self.oracle.made(self.process, server, "number", PATIENCE));
        let open_beside = beside.map(|id| Open::new(&self.oracle, id));
        let timers = self.timers.clone();
        let task = move |context| async move {
            let client = WorkLocal::connect(&context, server)?;
            let (patient, client) = (client.clone().with_timeout(PATIENCE), client.with_timeout(timeout));
            let number = beside.map(|id| patient.number(id));
            let call = client.echo(id, 0, 0, pattern(id, bytes).into());
            timers.block(busy);
            let outcome = call.await;
            let number = match number {
                Some(number) => Some(number.await),
                None => None,
            };
            Ok::<_, Status>((outcome, number))
        };
        let outcome = self.node.run_on(poller, task).await;
        open.ended();
        open_beside.into_iter().for_each(Open::ended);
        let (outcome, number) = match outcome {
            Ok(Ok((outcome, number))) => (Ok(outcome), number.map(Ok)),
            Ok(Err(status)) => (Ok(Err(status.clone())), Some(Ok(Err(status)))),
            Err(error) => (Err(error), Some(Err(()))),
        };
        if let Some((id, number)) = beside.zip(number) {
            match number {
                Ok(Ok(replied)) => self.oracle.succeeded(id, replied, false),
                Ok(Err(status)) => self.oracle.failed(id, &status),
                Err(()) => self.oracle.given_up(id),
            }
        }
        if busy > timeout {
            self.coverage.count(Kind::LateCall);
        }
        match outcome {
            Ok(Ok(reply)) => {
                self.oracle.judge_reply(id, &reply, 0);
                self.oracle.succeeded(id, id, false);
            }
            Ok(Err(status)) => {
                let is_late = busy > timeout && status.code() == Code::DeadlineExceeded;
                if is_late && status.may_have_run() {
                    self.oracle.fail(format!("call {id} was late before it could leave: {status}"));
                }
                self.oracle.failed(id, &status);
            }
            // The node shut down under the task, so it is unknown whether the call ran.
            Err(_) => self.oracle.given_up(id),
        }
    }
}
