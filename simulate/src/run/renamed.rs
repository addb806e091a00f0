//! A server that returns with a certificate for another name.
//!
//! Calls on channels that expect the server's address fail or wait. They do not run on the server until it presents its
//! first certificate again.

use super::absence::{DEATH_IS_REPORTED, RETURNS};
use super::{Checked, Run};
use crate::identity::PemFiles;
use crate::workload::client::{Ask, Client, MINUTE};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline::{Code, Connect, Status};

/// Name in the server's second certificate.
const OTHER: &str = "other.example";
/// Time limit of a call that must time out.
const IN_VAIN: Duration = Duration::from_millis(300);
const STAGE: Duration = Duration::from_secs(30);

impl Run {
    /// Restarts a server under another name, and then under its first name.
    pub(super) fn a_server_is_renamed(&mut self) -> Checked {
        let at = self.start_extra(|node| node)?;
        let address = self.extra[at].address;
        let client = self.client_of(&self.nodes[0], vec![address])?;
        let (first, waiting) = (client.clone(), client.clone());
        let began = self.program(client.process, async move {
            first.expect("a call by address", first.number_waiting(address, RETURNS).await, None);
        });
        self.within(STAGE, "a server that will be renamed is not reached", |_| began.get() == 1)?;

        let authority = self.authority.as_mut().ok_or("no authority")?;
        let (other, own) = (authority.named(&[OTHER]), authority.node(address));
        self.restart_as(at, other);
        let second = client.clone();
        let refused = self.program(client.process, async move { second.is_refused(address).await });
        self.within(STAGE, "calls to a renamed server do not end", |_| refused.get() == 1)?;
        let waited = self.program(client.process, async move {
            waiting.expect("a call that waits", waiting.number_waiting(address, MINUTE).await, None);
        });

        self.restart_as(at, own);
        let third = client.clone();
        let named = self.program(client.process, async move {
            third.meet_dead_session(address).await;
            let status = third.number_named(address, OTHER, RETURNS, Connect::FailFast).await;
            third.expect("a call by the last name", status, Some(Code::Unauthenticated));
        });
        let why = "a server that has its first name again is not reached";
        self.within(STAGE, why, |_| named.get() + waited.get() == 2)
    }

    /// Kills an additional node. Its successor presents another certificate.
    fn restart_as(&mut self, at: usize, files: PemFiles) {
        self.extra[at].kill(&mut self.scheduler);
        self.extra[at].present(files);
        self.extra[at].start(&mut self.scheduler, None);
    }
}

impl Client {
    /// Sends calls to a server that has proved [`OTHER`].
    async fn is_refused(&self, server: SocketAddr) {
        self.meet_dead_session(server).await;
        let status = self.call(server, RETURNS, Ask::Number).await;
        self.expect("a call by address", status, Some(Code::Unauthenticated));
        let status = self.number_named(server, OTHER, RETURNS, Connect::FailFast).await;
        self.expect("a call by the present name", status, None);
        let status = self.call(server, RETURNS, Ask::Number).await;
        self.expect("a call by address, beside a session", status, Some(Code::Unauthenticated));
        let status = self.number_waiting(server, IN_VAIN).await;
        self.expect("a call that waits in vain", status, Some(Code::DeadlineExceeded));
    }

    /// Calls a killed server until a call no longer uses the session with the dead process.
    async fn meet_dead_session(&self, server: SocketAddr) {
        let is_dead = |status: &Status| status.code() == Code::Unavailable;
        for name in [OTHER, &server.ip().to_string()] {
            while self
                .number_named(server, name, DEATH_IS_REPORTED, Connect::FailFast)
                .await
                .as_ref()
                .is_some_and(is_dead)
            {
                self.timers.sleep(Duration::from_millis(50)).await;
            }
        }
    }

    fn expect(&self, what: &str, outcome: Option<Status>, code: Option<Code>) {
        if outcome.as_ref().map(Status::code) != code {
            self.oracle.fail(format!("{what} to a server that was renamed ended with {outcome:?}"));
        }
    }
}
