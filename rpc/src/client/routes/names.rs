//! Compares the names that peers prove with the names that channels expect.
//!
//! Each expected name has a number, which the channel's calls carry. A poller compares names once per session and
//! expectation. Afterwards each call only compares two numbers. A node without an identity does not compare names.

use crate::client::routes::id::ExpectedId;
use std::collections::BTreeMap;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_transport::identity::{Expected, Name};
use trunkline_transport::{PeerIdentity, PeerKey};

/// Maximum number of cached comparisons per session.
const MOST_JUDGED: usize = 64;

/// The name that a channel's servers must prove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Expectation {
    /// The IP address of each server.
    #[default]
    Address,
    /// The host name of the target, also parsed as a DNS name. A host name that is not a DNS name cannot be proved.
    Host(Arc<str>, Option<Expected>),
    /// A name given by the program.
    Named(Expected),
}

impl Expectation {
    /// Returns the expectation for a target with this host name.
    pub(super) fn of_host(host: &str) -> Self {
        Self::Host(host.into(), host.parse().ok())
    }

    /// Returns the expectation for a channel to a peer with this proved name.
    pub(super) fn of_peer(name: Option<&Name>) -> Self {
        name.map_or(Self::Address, |name| Self::Named(name.clone().into()))
    }

    /// Returns why the identity of a peer does not match.
    fn mismatch(&self, peer: PeerKey, identity: &PeerIdentity) -> Option<Arc<str>> {
        let of_address = || Expected::from(peer.address().ip().to_canonical());
        let matches = match (identity, self) {
            // Such a session requires `accept(Level::None)`.
            (PeerIdentity::Unproven, expectation) => !matches!(expectation, Self::Named(_)),
            (PeerIdentity::Proven(proven), Self::Address) => of_address().matches(proven),
            (PeerIdentity::Proven(proven), Self::Host(_, name)) => {
                name.as_ref().is_some_and(|name| name.matches(proven))
            }
            (PeerIdentity::Proven(proven), Self::Named(name)) => name.matches(proven),
            (PeerIdentity::LocalUser(_), _) => true,
            // `PeerIdentity` is non-exhaustive.
            _ => false,
        };
        if matches || mutant!(names_are_not_compared) {
            return None;
        }
        let expected = match self {
            Self::Address => of_address().to_string(),
            Self::Host(host, _) => host.to_string(),
            Self::Named(name) => name.to_string(),
        };
        let proved = match identity {
            PeerIdentity::Proven(proven) => proven.principal().to_string(),
            _ => "no name".to_owned(),
        };
        let remedy = match self {
            Self::Named(_) => "correct that, or the name that the channel expects",
            Self::Address | Self::Host(..) => {
                "correct that, or give the name of the server: Target::named, or --name of trunkctl"
            }
        };
        let text = format!(
            "expected {expected}, the peer proved {proved}: see which service has this address, and which certificate it was \
             given; {remedy}"
        );
        Some(text.into())
    }
}

/// The expectations of a node's channels, with the number of channels for each.
#[derive(Debug, Default)]
pub(super) struct Expectations {
    known: BTreeMap<ExpectedId, (Arc<Expectation>, usize)>,
    last: ExpectedId,
}

impl Expectations {
    /// Returns the number of an expectation, and counts one more channel for it.
    pub(super) fn add(&mut self, expectation: &Expectation) -> ExpectedId {
        if *expectation == Expectation::Address {
            return ExpectedId::ADDRESS;
        }
        let same = self.known.iter_mut().find(|(_, (known, _))| **known == *expectation);
        if let Some((id, (_, channels))) = same {
            *channels += 1;
            return *id;
        }
        let is_given = matches!(expectation, Expectation::Named(_));
        // Numbers repeat after two billion expectations.
        loop {
            self.last = self.last.next(is_given);
            if self.last != ExpectedId::ADDRESS && !self.known.contains_key(&self.last) {
                break;
            }
        }
        self.known.insert(self.last, (Arc::new(expectation.clone()), 1));
        self.last
    }

    /// Removes a channel with this expectation.
    pub(super) fn remove(&mut self, id: ExpectedId) {
        if let Some((_, channels)) = self.known.get_mut(&id) {
            *channels -= 1;
            if *channels == 0 {
                self.known.remove(&id);
            }
        }
    }

    pub(super) fn get(&self, id: ExpectedId) -> Option<Arc<Expectation>> {
        match id {
            ExpectedId::ADDRESS => Some(Arc::default()),
            id => self.known.get(&id).map(|(expectation, _)| Arc::clone(expectation)),
        }
    }
}

/// Identities of peers in their current sessions, with cached comparisons.
#[derive(Debug, Default)]
pub(crate) struct ProvenNames(BTreeMap<PeerKey, Judged>);

#[derive(Debug)]
struct Judged {
    identity: PeerIdentity,
    /// Reason for a mismatch, by expectation; `None` if the identity matches.
    by_expectation: BTreeMap<ExpectedId, Option<Arc<str>>>,
}

impl ProvenNames {
    /// Records the identity of a peer with a new session.
    pub(crate) fn up(&mut self, peer: PeerKey, identity: PeerIdentity) {
        self.0.insert(peer, Judged { identity, by_expectation: BTreeMap::new() });
    }

    /// Records that a peer's session has ended.
    pub(crate) fn down(&mut self, peer: PeerKey) {
        self.0.remove(&peer);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns why a peer's session does not match an expectation. `find` looks up the expectation.
    pub(crate) fn mismatch(
        &mut self,
        peer: PeerKey,
        id: ExpectedId,
        find: impl FnOnce(ExpectedId) -> Option<Arc<Expectation>>,
    ) -> Option<Arc<str>> {
        let Some(Judged { identity, by_expectation }) = self.0.get_mut(&peer) else {
            return Some("the peer has no session".into());
        };
        if let Some(judged) = by_expectation.get(&id) {
            return judged.clone();
        }
        let Some(expectation) = find(id) else { return Some("the channel is gone".into()) };
        let judged = expectation.mismatch(peer, identity);
        if by_expectation.len() == MOST_JUDGED {
            by_expectation.clear();
        }
        by_expectation.insert(id, judged.clone());
        judged
    }
}
