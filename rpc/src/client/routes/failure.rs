//! Failures of rounds.

use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use trunkline_transport::{PeerDown, PeerKey};

/// Maximum number of addresses that a failure names.
const MOST_NAMED: usize = 16;

/// The failure of a round, with the cause for each address that was tried, and the error of the lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    code: Code,
    reason: Reason,
    text: String,
    causes: Vec<String>,
    /// True if another round cannot succeed.
    pub(super) is_final: bool,
    /// True if every address was paused and the round tried none of them.
    has_tried_none: bool,
}

/// Cause of failure at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unreached {
    /// The attempt ended with this cause.
    Down(PeerDown),
    /// The server has a session and drains.
    Draining,
    /// The server has a session, but its proved name differs from the expected one. The text contains both names.
    OtherName(Arc<str>),
    /// The attempt timed out.
    NoOutcome,
}

impl Failure {
    /// Creates the failure of an invalid target.
    pub(super) fn misuse(text: &str) -> Self {
        let text = text.to_owned();
        Self {
            code: Code::InvalidArgument,
            reason: Reason::Misuse,
            text,
            causes: Vec::new(),
            is_final: true,
            has_tried_none: false,
        }
    }

    /// Creates the failure of a round that tried these addresses. `lookup` contains the texts of the lookup's error and its
    /// sources. `is_fixed` is true if the addresses never change.
    pub(super) fn new(tried: &[(PeerKey, Unreached)], lookup: &[String], is_fixed: bool) -> Self {
        let mut text = String::new();
        for (address, why) in tried.iter().take(MOST_NAMED) {
            let separator = if text.is_empty() { "" } else { "; " };
            let _written = match why {
                Unreached::Down(cause) => write!(text, "{separator}{address}: {cause}"),
                Unreached::Draining => write!(text, "{separator}{address}: the server is draining"),
                Unreached::OtherName(why) => write!(text, "{separator}{address}: {why}"),
                Unreached::NoOutcome => write!(text, "{separator}{address}: no session in time"),
            };
        }
        if let Some(others @ 1..) = tried.len().checked_sub(MOST_NAMED) {
            let _written = write!(text, "; and {others} other addresses");
        }
        match (tried, lookup) {
            ([], []) => text.push_str("the name has no address at which a server can be"),
            ([], _) => text.push_str("its addresses cannot be found"),
            (_, []) => {}
            _ => text.push_str("; and its addresses cannot be looked up again"),
        }
        let kind = |why: &Unreached| match why {
            Unreached::Down(cause) => Status::of(*cause),
            Unreached::Draining => (Code::Unavailable, Reason::Draining),
            Unreached::OtherName(_) => (Code::Unauthenticated, Reason::Unreachable),
            Unreached::NoOutcome => (Code::Unavailable, Reason::Unreachable),
        };
        // A cause common to all addresses determines the status.
        let mut kinds = tried.iter().map(|(_, why)| kind(why));
        let first = kinds.next().unwrap_or((Code::Unavailable, Reason::Unreachable));
        // A draining server counts as an answer.
        let has_answer = tried.iter().any(|(_, why)| matches!(why, Unreached::Draining));
        let others = if has_answer { Reason::Draining } else { Reason::Unreachable };
        let (code, reason) =
            if kinds.all(|kind| kind == first) { first } else { (Code::Unavailable, others) };
        let ends = |why: &Unreached| matches!(why, Unreached::Down(cause) if cause.is_final());
        let is_final = is_fixed && !tried.is_empty() && tried.iter().all(|(_, why)| ends(why));
        Self { code, reason, text, causes: lookup.to_vec(), is_final, has_tried_none: false }
    }

    /// Records that every address was paused.
    pub(super) fn without_attempt(self) -> Self {
        Self { has_tried_none: true, ..self }
    }

    /// Returns true if the round ended without an attempt, and another round may succeed.
    pub(super) fn has_tried_none(&self) -> bool {
        self.has_tried_none && !self.is_final
    }

    /// Returns the status of a call that waited for the round.
    pub(super) fn status(&self) -> Status {
        let status = Status::not_run(self.code, self.text.clone()).because(self.reason);
        self.causes.iter().fold(status, Status::with_cause)
    }

    /// Returns the status of a call that does not wait for the next round.
    pub(super) fn status_while(&self, due_in: Duration) -> Status {
        let status = self.status();
        if self.is_final { status } else { status.with_next_attempt(due_in) }
    }

    /// Returns the failure as text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_named_with_its_cause() {
        let at = |port| PeerKey::new(([10, 0, 0, 1], port).into());
        let tried = [(at(1), Unreached::Down(PeerDown::Unreachable)), (at(2), Unreached::NoOutcome)];
        let failure = Failure::new(&tried, &["no such name".to_owned()], false);
        let status = failure.status();
        assert_eq!(
            (status.code(), status.may_have_run(), failure.is_final),
            (Code::Unavailable, false, false)
        );
        for words in [
            "10.0.0.1:1: the peer does not answer requests to connect at all",
            "; 10.0.0.1:2: ",
            "looked up again",
        ] {
            assert!(status.message().contains(words), "{status}");
        }
        assert_eq!(status.causes(), ["no such name"]);
    }

    #[test]
    fn message_excludes_time_until_next_attempt() {
        let at = PeerKey::new(([10, 0, 0, 1], 1).into());
        let failure = Failure::new(&[(at, Unreached::Down(PeerDown::NotListening))], &[], true);
        let [soon, later] = [40, 1300].map(|ms| failure.status_while(Duration::from_millis(ms)));
        assert_eq!(soon.message(), later.message());
        assert_eq!(soon.message(), failure.status().message());
        let cause = "the next attempt to connect is due in 1.3s; calls with Connect::Wait wait for it";
        assert_eq!(later.causes(), [cause]);
        let none = Failure::misuse("no port").status_while(Duration::from_millis(40));
        assert!(none.causes().is_empty(), "waiting does not mend it: {none}");
    }

    #[test]
    fn failure_is_final_if_every_fixed_address_fails_permanently() {
        let listens_on = ([127, 0, 0, 1], 7).into();
        let at = PeerKey::new(listens_on);
        let tried = [(at, Unreached::Down(PeerDown::NoAddress { listens_on }))];
        let failure = Failure::new(&tried, &[], true);
        assert!(failure.is_final && failure.status().code() == Code::Unavailable);
        assert!(!Failure::new(&tried, &[], false).is_final, "the name may have others later");
        let mixed = [tried[0].clone(), (at, Unreached::Down(PeerDown::NotListening))];
        let failure = Failure::new(&mixed, &[], true);
        assert!(!failure.is_final && failure.status().code() == Code::Unavailable);
    }
}
