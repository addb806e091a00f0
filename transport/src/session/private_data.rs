//! Private data of a session's REQ, REP and REJ, and of the DREQ if a node ends a session for a cause.
//!
//! Called by the CM machine. All bytes come from an untrusted peer, so this code must not panic. Integers are big
//! endian, as in all CM messages.
//!
//! ```text
//! all  0 magic "TRNK" (4)
//! REQ  4 highest version (1)  5 features (1)  6 listener port (2)  8 epoch (8)  16 number (4)
//!     20 echo epoch (8)  28 echo number (4)  32 poller (2)  34 pollers (2)
//!     36 kind of connections (1)  37 lowest version (1)  38 cookie (16), zero without one  54 UDP port (2)
//! REP  4 highest version (1)  5 features (1)  6 lowest version (1)  7 pollers (1)  8 epoch (8)  16 number (4)
//!     20 UDP port (2)  22 zero (2)  24 SRQ numbers (4 each, by poller)
//! REJ  4 highest version (1)  5 reason (1)  6 lowest version (1)  7 one flow (1)
//!     8 by reason: 11 cookie (16), code of the path MTU (1; 0 unknown); 12 setting (2); 16 code of the path MTU (1)
//! DREQ as REJ, with reason 14 to 16; or zero
//! ```
//!
//! A handshake between a dialing node and a listening one, with two pollers each:
//!
//! ```text
//! dials                                          listens
//!   |-- REQ 0: epoch, number ----------------------->|  remembers nothing
//!   |<------------------- REJ: unproven, cookie -----|  to the claimed address
//!   |-- REQ 0, REQ 1: epoch, number, cookie -------->|  the cookie is right: a session, two TGTs
//!   |<---------------------------- REP 0, REP 1 -----|
//!   |<-------- REQ 0: echo of epoch and number ------|  one dial-back
//!   |-- REP 0 -------------------------------------->|  it was answered:
//!   |<-------- REQ 1: echo of epoch and number ------|  the others
//!   |-- REP 1 -------------------------------------->|  up, and charged credit
//! ```
#![forbid(unsafe_code)]

use crate::PeerDown;
use crate::messages::NO_IDENTITY;
use crate::provider::connections::ConnectionKind;
use std::num::NonZeroU16;
use trunkline_verbs::{Mtu, SrqNumber};

/// Versions of the session protocol that this node speaks.
pub(crate) const SPOKEN: Versions = Versions { lowest: 5, highest: 5 };
/// Features that a listener must support if a request has them.
const REQUIRED: u8 = 0x0f;
/// UDP port of a device whose node sends 0.
const UDP_PORT: u16 = 4791;
/// Maximum number of pollers of a node, whose SRQ numbers must fit in a REP.
pub(crate) const MAX_POLLERS: u16 = 32;

const MAGIC: [u8; 4] = *b"TRNK";
/// The code of [`Refusal::Version`].
const OTHER_VERSION: u8 = 2;
/// The code of [`Refusal::Unproven`].
const UNPROVEN: u8 = 11;
/// The code of [`Refusal::Setting`].
const UNKNOWN_SETTING: u8 = 12;
/// The code of [`Refusal::PathMtu`].
const PATH_MTU: u8 = 16;

/// Versions that a node speaks, at offsets that never change. A session uses the highest one that both sides
/// speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) lowest: u8,
    pub(crate) highest: u8,
}

impl Versions {
    /// Returns the version of a session with a node that speaks `others`.
    pub(crate) fn common(self, others: Self) -> Option<u8> {
        let highest = self.highest.min(others.highest);
        (self.lowest.max(others.lowest) <= highest).then_some(highest)
    }
}

/// One session of one incarnation of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SessionName {
    /// Random number of the incarnation; never 0.
    pub(crate) epoch: u64,
    /// Number of the session, unique within the incarnation, from 1.
    pub(crate) number: u32,
}

/// Features of a request or a reply. `docs/book/src/why/wire.md` assigns the bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Features(u8);

impl Features {
    pub(crate) const NONE: Self = Self(0);
    /// Frames of kind HANDSHAKE precede SETTINGS.
    pub(crate) const HANDSHAKE: Self = Self(0x01);
}

/// Secret that a listening node sends to the claimed address of an unknown peer, and that the peer returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cookie(pub(crate) [u8; 16]);

/// The private data of a poller's connection request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) features: Features,
    /// Port of the sender's listener, for the dial-back.
    pub(crate) listener_port: NonZeroU16,
    /// The sender's session.
    pub(crate) session: SessionName,
    /// The receiver's session that the sender answers with a dial-back.
    pub(crate) echo: Option<SessionName>,
    /// The poller that owns the INI.
    pub(crate) poller: u16,
    /// Number of the sender's pollers.
    pub(crate) pollers: u16,
    /// Kind of the sender's QPs, which the receiver's QPs must match.
    pub(crate) connections: ConnectionKind,
    /// Cookie that the receiver has sent to the sender's address; never all zero.
    pub(crate) cookie: Option<Cookie>,
    /// UDP port at which the sender's device receives.
    pub(crate) udp_port: u16,
    /// True if the receiver's host has proved that the sender is a process of its user. Not carried in the message.
    pub(crate) is_local: bool,
}

/// The private data of the accepting node's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) features: Features,
    /// Session of the accepting node.
    pub(crate) session: SessionName,
    /// SRQ numbers of the accepting node's pollers.
    pub(crate) srqs: Vec<SrqNumber>,
    /// UDP port at which the accepting node's device receives.
    pub(crate) udp_port: u16,
    /// See [`Hello::is_local`].
    pub(crate) is_local: bool,
}

/// Reason why a node refuses a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The private data belongs to another protocol.
    NotTrunkline,
    /// The other side speaks only these protocol versions.
    Version(Versions),
    /// The node lacks a feature that the other side requires.
    Feature,
    /// The session of the request is over. The other side should start a new session.
    Stale,
    /// The request breaks the protocol.
    Malformed,
    /// The node is shutting down.
    ShuttingDown,
    /// The node cannot create its end of the connection because of a limit or a missing permission. The error is in
    /// the node's log.
    Resources,
    /// Too many sessions of the host exist or are half-open, or too many sessions of unknown hosts are
    /// half-open. The peer should retry.
    Crowded,
    /// The node uses XRC connections, not RC.
    UsesXrc,
    /// The node uses RC connections, not XRC.
    UsesRc,
    /// The sender has not proved its address. The sender should repeat the request with this cookie, and with at
    /// most this path MTU if larger packets have been lost between the two hosts.
    Unproven(Cookie, Option<Mtu>),
    /// The settings of the sender's incarnation contain a critical setting that is unknown to this node.
    Setting(u16),
    /// The node opens sessions only with peers that prove a name.
    IdentityRequired,
    /// The node ended a session because the other side broke the protocol.
    ProtocolBroken,
    /// The node ended a session because a sealed frame or message could not be decrypted.
    Altered,
    /// The node ended a session because large packets of this path MTU are lost in transit.
    PathMtu(Mtu),
}

impl Refusal {
    /// Refusals that consist only of a code.
    const PLAIN: [Self; 12] = [
        Self::NotTrunkline,
        Self::Feature,
        Self::Stale,
        Self::Malformed,
        Self::ShuttingDown,
        Self::Resources,
        Self::Crowded,
        Self::UsesXrc,
        Self::UsesRc,
        Self::IdentityRequired,
        Self::ProtocolBroken,
        Self::Altered,
    ];

    fn code(self) -> u8 {
        match self {
            Self::NotTrunkline => 1,
            Self::Version(_) => OTHER_VERSION,
            Self::Feature => 3,
            Self::Stale => 4,
            Self::Malformed => 5,
            Self::ShuttingDown => 6,
            Self::Resources => 7,
            Self::Crowded => 8,
            Self::UsesXrc => 9,
            Self::UsesRc => 10,
            Self::Unproven(..) => UNPROVEN,
            Self::Setting(_) => UNKNOWN_SETTING,
            Self::IdentityRequired => 13,
            Self::ProtocolBroken => 14,
            Self::Altered => 15,
            Self::PathMtu(_) => PATH_MTU,
        }
    }

    /// Encodes the refusal as private data, with the versions of this node. `is_one_flow` is true if the
    /// request was for one flow.
    pub(crate) fn emit(self, is_one_flow: bool) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([SPOKEN.highest, self.code(), SPOKEN.lowest, is_one_flow.into()]);
        match self {
            Self::Unproven(Cookie(cookie), path_mtu) => {
                out.extend(cookie);
                out.extend(path_mtu.map(Mtu::code));
            }
            Self::Setting(setting) => out.extend(setting.to_be_bytes()),
            Self::PathMtu(mtu) => out.push(mtu.code()),
            _ => {}
        }
        out
    }

    /// Returns true if the refused request was for one flow.
    pub(crate) fn is_of_one_flow(bytes: &[u8]) -> bool {
        bytes.get(7) == Some(&1)
    }

    /// Parses private data. Returns `None` if it belongs to another protocol or its code is unknown.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.get(..4) != Some(&MAGIC[..]) {
            return None;
        }
        let code = *bytes.get(5)?;
        if code == UNPROVEN {
            let path_mtu = bytes.get(24).and_then(|code| Mtu::from_code(*code));
            return array(bytes, 8).map(|cookie| Self::Unproven(Cookie(cookie), path_mtu));
        }
        if code == UNKNOWN_SETTING {
            return array(bytes, 8).map(|setting| Self::Setting(u16::from_be_bytes(setting)));
        }
        if code == PATH_MTU {
            return Mtu::from_code(*bytes.get(8)?).filter(|mtu| mtu.smaller().is_some()).map(Self::PathMtu);
        }
        if code == OTHER_VERSION {
            let [highest, _, lowest] = array(bytes, 4)?;
            return Some(Self::Version(Versions { lowest, highest }));
        }
        Self::PLAIN.into_iter().find(|refusal| refusal.code() == code)
    }

    /// Returns the refusal to send to the peer of a session that this node ends for a cause, if any.
    pub(super) fn for_ended_session(cause: PeerDown) -> Option<Self> {
        match cause {
            PeerDown::Misbehaved(_) | PeerDown::UnknownFrame(_) => Some(Self::ProtocolBroken),
            #[cfg(feature = "identity")]
            PeerDown::Altered(_) => Some(Self::Altered),
            PeerDown::PathMtu { mtu, is_told: false } => Some(Self::PathMtu(mtu)),
            _ => None,
        }
    }

    /// Returns the cause of the end of a session whose peer sent this refusal in a DREQ. A DREQ may be forged, so
    /// only some refusals are trusted.
    pub(super) fn of_ended_session(self) -> PeerDown {
        match self {
            Self::ProtocolBroken | Self::Altered => PeerDown::ClosedFor(self.explain()),
            Self::PathMtu(mtu) => PeerDown::PathMtu { mtu, is_told: true },
            _ => PeerDown::Closed,
        }
    }

    /// Returns the cause of a session's failure, for a node that sent or received this refusal.
    pub(crate) fn cause(self) -> PeerDown {
        match self {
            Self::Version(Versions { lowest, highest }) => {
                PeerDown::Version { ours: (SPOKEN.lowest, SPOKEN.highest), theirs: (lowest, highest) }
            }
            Self::Setting(setting) => PeerDown::SettingRefused(setting),
            Self::IdentityRequired => PeerDown::IdentityRequired,
            other => PeerDown::Refused(other.explain()),
        }
    }

    /// Returns true if this refusal is sent only to peers that have proved their address.
    pub(super) fn follows_proof(self) -> bool {
        matches!(self, Self::Crowded | Self::Resources | Self::Setting(_) | Self::IdentityRequired)
    }

    /// Returns the cause and the remedy for the log of the node that sends this refusal. Returns `None` if the peer
    /// retries without help, if its request is malformed, or if the cause is logged elsewhere.
    pub(super) fn advice(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Version(_) => {
                Some(("the peer speaks other protocol versions", "update the node with the older ones"))
            }
            Self::Setting(_) => Some((
                "the peer has a setting that this node must not ignore and does not know",
                "update this node",
            )),
            Self::IdentityRequired => Some((
                "the peer proves no name, and this node requires one",
                "give the peer an identity, or call accept(Level::None) for this node",
            )),
            Self::Crowded => Some((
                "the peer's host has too many sessions, or too many sessions are half-open",
                "run fewer nodes or pollers on that host",
            )),
            Self::UsesXrc => Some((
                "the peer uses RC connections, this node XRC",
                "start this node with --connections rc (NodeBuilder::connections)",
            )),
            Self::UsesRc => Some((
                "the peer uses XRC connections, this node RC",
                "start the peer with --connections rc (NodeBuilder::connections)",
            )),
            _ => None,
        }
    }

    /// Returns the cause of a refusal without advice, in the words of the node that sends it.
    pub(super) fn own_cause(self) -> &'static str {
        match self {
            Self::NotTrunkline => "the request belongs to another protocol",
            Self::Feature => "this node lacks an identity, or another feature that the peer requires",
            Self::Malformed => "the request is malformed",
            Self::ShuttingDown => "this node is shutting down",
            Self::Resources => "this node cannot open its end of the session",
            _ => "the session of the request is over",
        }
    }

    /// Returns a human-readable description, for `PeerDown::Refused`.
    pub(crate) fn explain(self) -> &'static str {
        match self {
            Self::NotTrunkline => "it did not recognise the protocol of the request",
            Self::Version(_) => "it speaks another protocol version",
            Self::Feature => {
                "it lacks an identity, or another feature that this node requires: give it an identity, or update it"
            }
            Self::Stale => "the session it belonged to was over",
            Self::Malformed => "it found the request malformed",
            Self::ShuttingDown => "it is shutting down",
            Self::Resources => {
                "it cannot open its end of the session: its log names the limit or permission that it lacks"
            }
            Self::Crowded => {
                "this host has too many sessions with it, or too many sessions of unproven peers are half-open"
            }
            Self::IdentityRequired => NO_IDENTITY,
            Self::ProtocolBroken => "this node broke the protocol; the peer's log names the rule",
            Self::Altered => "a sealed frame or message of this node arrived changed, repeated or not at all",
            Self::PathMtu(_) => "large packets vanish on the way between the nodes",
            Self::Setting(_) => "it does not know a setting of this node",
            Self::Unproven(..) => "it keeps asking for proof of this node's address",
            Self::UsesXrc => {
                "it uses XRC connections, this node RC: start it with --connections rc (NodeBuilder::connections)"
            }
            Self::UsesRc => {
                "it uses RC connections, this node XRC: start this one with --connections rc (NodeBuilder::connections)"
            }
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn begin(features: Features) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend([SPOKEN.highest, features.0]);
    out
}

/// Checks the prefix of requests and replies, and returns the features in it. `lowest` is the sender's lowest
/// version, or zero if it is not given.
fn check_prefix(bytes: &[u8], lowest: Option<u8>) -> Result<u8, Refusal> {
    if bytes.get(..4) != Some(&MAGIC[..]) {
        return Err(Refusal::NotTrunkline);
    }
    let (lowest, highest) = (lowest.unwrap_or_default(), bytes.get(4).copied().unwrap_or_default());
    let theirs = Versions { lowest, highest };
    if SPOKEN.common(theirs).is_none() {
        return Err(Refusal::Version(theirs));
    }
    bytes.get(5).copied().ok_or(Refusal::Malformed)
}

fn udp_port(bytes: &[u8], at: usize) -> Option<u16> {
    Some(match u16::from_be_bytes(array(bytes, at)?) {
        0 => UDP_PORT,
        port => port,
    })
}

fn udp_port_bytes(port: u16) -> [u8; 2] {
    if port == UDP_PORT { [0; 2] } else { port.to_be_bytes() }
}

/// Values of a REQ or a REP as carried, for the binding of a handshake.
#[cfg(feature = "identity")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) versions: Versions,
    pub(crate) features: u8,
    /// UDP port at which the sender receives.
    pub(crate) udp_port: u16,
}

#[cfg(feature = "identity")]
impl Carried {
    pub(crate) fn of_request(bytes: &[u8]) -> Option<Self> {
        Self::new(bytes, 37, 54)
    }

    pub(crate) fn of_reply(bytes: &[u8]) -> Option<Self> {
        Self::new(bytes, 6, 20)
    }

    fn new(bytes: &[u8], lowest: usize, port: usize) -> Option<Self> {
        let versions = Versions { lowest: *bytes.get(lowest)?, highest: *bytes.get(4)? };
        Some(Self { versions, features: *bytes.get(5)?, udp_port: udp_port(bytes, port)? })
    }
}

impl Hello {
    /// Encodes the private data, which is the 56 bytes of a REQ.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let echo = self.echo.unwrap_or_default();
        let mut out = begin(self.features);
        out.extend(self.listener_port.get().to_be_bytes());
        out.extend(self.session.epoch.to_be_bytes());
        out.extend(self.session.number.to_be_bytes());
        out.extend(echo.epoch.to_be_bytes());
        out.extend(echo.number.to_be_bytes());
        out.extend(self.poller.to_be_bytes());
        out.extend(self.pollers.to_be_bytes());
        out.extend([self.connections.code(), SPOKEN.lowest]);
        out.extend(self.cookie.map_or([0; 16], |Cookie(cookie)| cookie));
        out.extend(udp_port_bytes(self.udp_port));
        out
    }

    /// Parses private data. Features outside `known` are omitted from the result.
    ///
    /// # Errors
    /// Returns the refusal to answer with.
    pub(crate) fn parse(bytes: &[u8], known: Features) -> Result<Self, Refusal> {
        let wanted = check_prefix(bytes, bytes.get(37).copied())?;
        if wanted & REQUIRED & !known.0 != 0 {
            return Err(Refusal::Feature);
        }
        let read = || -> Option<Self> {
            let cookie = array(bytes, 38)?;
            let echo = SessionName {
                epoch: u64::from_be_bytes(array(bytes, 20)?),
                number: u32::from_be_bytes(array(bytes, 28)?),
            };
            Some(Self {
                features: Features(wanted & known.0),
                listener_port: NonZeroU16::new(u16::from_be_bytes(array(bytes, 6)?))?,
                session: SessionName {
                    epoch: u64::from_be_bytes(array(bytes, 8)?),
                    number: u32::from_be_bytes(array(bytes, 16)?),
                },
                echo: (echo != SessionName::default()).then_some(echo),
                poller: u16::from_be_bytes(array(bytes, 32)?),
                pollers: u16::from_be_bytes(array(bytes, 34)?),
                connections: ConnectionKind::from_code(*bytes.get(36)?)?,
                cookie: (cookie != [0; 16]).then_some(Cookie(cookie)),
                udp_port: udp_port(bytes, 54)?,
                is_local: false,
            })
        };
        let hello = read().ok_or(Refusal::Malformed)?;
        let counts = (1..=MAX_POLLERS).contains(&hello.pollers) && hello.poller < hello.pollers;
        if !counts || hello.session.epoch == 0 || hello.session.number == 0 {
            return Err(Refusal::Malformed);
        }
        Ok(hello)
    }
}

impl Welcome {
    /// Returns the number of pollers of the accepting node.
    pub(crate) fn pollers(&self) -> u16 {
        u16::try_from(self.srqs.len()).unwrap_or(u16::MAX)
    }

    /// Encodes the private data, which takes at most 152 of the 196 bytes of a REP.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = begin(self.features);
        out.extend([SPOKEN.lowest, u8::try_from(self.pollers()).unwrap_or(u8::MAX)]);
        out.extend(self.session.epoch.to_be_bytes());
        out.extend(self.session.number.to_be_bytes());
        out.extend(udp_port_bytes(self.udp_port));
        out.extend([0; 2]);
        for srq in &self.srqs {
            out.extend(srq.get().to_be_bytes());
        }
        out
    }

    /// Parses private data.
    ///
    /// # Errors
    /// Returns the fault in the data.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Refusal> {
        let features = check_prefix(bytes, bytes.get(6).copied())?;
        if features & !Features::HANDSHAKE.0 != 0 {
            // The peer agreed to a feature that this version never requests.
            return Err(Refusal::Malformed);
        }
        let read = || -> Option<Self> {
            let pollers = u16::from(*bytes.get(7)?);
            if !(1..=MAX_POLLERS).contains(&pollers) {
                return None;
            }
            let srqs = (0..usize::from(pollers))
                .map(|index| array(bytes, 24 + 4 * index).map(u32::from_be_bytes))
                .map(|number| number.filter(|&n| n <= 0xff_ffff).map(SrqNumber::new))
                .collect::<Option<Vec<_>>>()?;
            Some(Self {
                features: Features(features),
                session: SessionName {
                    epoch: u64::from_be_bytes(array(bytes, 8)?),
                    number: u32::from_be_bytes(array(bytes, 16)?),
                },
                srqs,
                udp_port: udp_port(bytes, 20)?,
                is_local: false,
            })
        };
        let welcome = read().ok_or(Refusal::Malformed)?;
        if welcome.session.epoch == 0 || welcome.session.number == 0 {
            return Err(Refusal::Malformed);
        }
        Ok(welcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            features: Features::NONE,
            listener_port: NonZeroU16::new(7471).unwrap(),
            session: SessionName { epoch: 5, number: 6 },
            echo: Some(SessionName { epoch: 7, number: 8 }),
            poller: 1,
            pollers: 2,
            connections: ConnectionKind::Rc,
            cookie: Some(Cookie([9; 16])),
            udp_port: 4791,
            is_local: false,
        }
    }

    fn welcome(pollers: u32) -> Welcome {
        Welcome {
            udp_port: 4791,
            is_local: false,
            features: Features::NONE,
            session: SessionName { epoch: 5, number: 6 },
            srqs: (0..pollers).map(|n| SrqNumber::new(0xff_0000 + n)).collect(),
        }
    }

    #[test]
    fn private_data_messages_round_trip() {
        for (echo, cookie) in [(None, None), (hello().echo, None), (None, hello().cookie)] {
            let hello = Hello { echo, cookie, ..hello() };
            let mut bytes = hello.emit();
            assert!(bytes.len() <= 56);
            bytes.resize(56, 0);
            assert_eq!(Hello::parse(&bytes, Features::NONE), Ok(hello));
        }
        let mut usual = hello().emit();
        usual[54..].copy_from_slice(&4791_u16.to_be_bytes());
        assert_eq!(Hello::parse(&usual, Features::NONE), Ok(hello()));
        let hello = Hello { features: Features::HANDSHAKE, ..hello() };
        assert_eq!(Hello::parse(&hello.emit(), Features::HANDSHAKE), Ok(hello));
        let agreed = Welcome { features: Features::HANDSHAKE, ..welcome(1) };
        assert_eq!(Welcome::parse(&agreed.emit()), Ok(agreed));
        let other_port = Welcome { udp_port: 4792, ..welcome(1) };
        assert_eq!(Welcome::parse(&other_port.emit()), Ok(other_port));
        let mut unknown = welcome(1).emit();
        unknown[5] = 0x11;
        assert_eq!(Welcome::parse(&unknown), Err(Refusal::Malformed), "agreed to an unknown feature");
        for pollers in [1, u32::from(MAX_POLLERS)] {
            let mut bytes = welcome(pollers).emit();
            assert!(bytes.len() <= 196);
            bytes.resize(196, 0);
            assert_eq!(Welcome::parse(&bytes), Ok(welcome(pollers)));
        }
        let others = [
            Refusal::Unproven(Cookie([7; 16]), None),
            Refusal::Unproven(Cookie([7; 16]), Some(Mtu::Mtu1024)),
            Refusal::Setting(0x123),
            Refusal::PathMtu(Mtu::Mtu512),
        ];
        for refusal in Refusal::PLAIN.into_iter().chain(others) {
            for is_one_flow in [false, true] {
                let bytes = refusal.emit(is_one_flow);
                assert_eq!(Refusal::parse(&bytes), Some(refusal));
                assert_eq!(Refusal::is_of_one_flow(&bytes), is_one_flow);
            }
        }
    }

    #[test]
    fn malformed_hellos_are_refused_by_cause() {
        let good = hello().emit();
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Hello::parse(&bytes, Features::NONE)
        };
        assert_eq!(with(0, b'X'), Err(Refusal::NotTrunkline));
        assert_eq!(with(4, 4), Err(Refusal::Version(Versions { lowest: 5, highest: 4 })));
        assert_eq!(with(37, 6), Err(Refusal::Version(Versions { lowest: 6, highest: 5 })));
        assert!(with(4, 9).is_ok() && with(37, 1).is_ok(), "a node that speaks other versions, too");
        for required in [1, 2, 4, 8] {
            assert_eq!(with(5, 0xf0 | required), Err(Refusal::Feature));
        }
        let mut wanted = good.clone();
        wanted[5] = 0xf1;
        assert_eq!(Hello::parse(&wanted, Features::HANDSHAKE).map(|it| it.features), Ok(Features::HANDSHAKE));
        wanted[5] = 0x03;
        assert_eq!(Hello::parse(&wanted, Features::HANDSHAKE), Err(Refusal::Feature), "one of two is known");
        assert!(with(5, 0xf0).is_ok(), "features that a listener need not know");
        assert_eq!(with(54, 0x12).map(|hello| hello.udp_port), Ok(0x1200));
        assert_eq!(Hello::parse(&good, Features::NONE).map(|hello| hello.udp_port), Ok(4791));
        assert_eq!(with(33, 2), Err(Refusal::Malformed));
        assert_eq!(with(34, 1), Err(Refusal::Malformed));
        assert_eq!(with(36, 0), Err(Refusal::Malformed));
        assert_eq!(with(15, 0), Err(Refusal::Malformed));
        assert_eq!(Hello::parse(&good[..30], Features::NONE), Err(Refusal::Malformed));
        assert_eq!(Hello::parse(&good[..50], Features::NONE), Err(Refusal::Malformed));
        assert_eq!(Refusal::parse(b"TRNK\x04\xff"), None);
        assert_eq!(Refusal::parse(b"TRNK\x04\x0b\x04\0too short"), None);
        assert_eq!(Refusal::parse(b""), None);
    }

    #[test]
    fn peer_can_lower_its_requested_path_mtu_by_one_step() {
        let lost = PeerDown::PathMtu { mtu: Mtu::Mtu1024, is_told: false };
        let mut bytes = Refusal::for_ended_session(lost).unwrap().emit(false);
        bytes.resize(220, 0);
        let told = Refusal::parse(&bytes).unwrap().of_ended_session();
        assert_eq!(told, PeerDown::PathMtu { mtu: Mtu::Mtu1024, is_told: true });
        assert!(told.to_string().contains("the peer closed the session, and says"), "{told}");
        assert_eq!(Refusal::for_ended_session(told), None, "the peer knows");
        assert_eq!(lost.next_mtu(None), Some(Mtu::Mtu512));
        assert_eq!(told.next_mtu(Some(Mtu::Mtu1024)), Some(Mtu::Mtu512));
        assert_eq!((told.next_mtu(Some(Mtu::Mtu4096)), told.next_mtu(None)), (None, None), "forged");
        assert_eq!(PeerDown::Died.next_mtu(Some(Mtu::Mtu1024)), None);
        for no_step in [0, Mtu::Mtu256.code(), 6, 255] {
            bytes[8] = no_step;
            assert_eq!(Refusal::parse(&bytes), None, "{no_step}");
        }
        assert_eq!(Refusal::parse(&bytes[..8]), None);
    }

    #[test]
    fn highest_common_version_is_spoken() {
        let versions = |lowest, highest| Versions { lowest, highest };
        for (ours, theirs, common) in [
            (versions(4, 4), versions(4, 4), Some(4)),
            (versions(4, 6), versions(2, 5), Some(5)),
            (versions(4, 4), versions(5, 5), None),
            (versions(4, 4), versions(2, 3), None),
            (versions(4, 4), versions(9, 1), None),
        ] {
            assert_eq!((ours.common(theirs), theirs.common(ours)), (common, common));
        }
        let refusal = Refusal::parse(b"TRNK\x08\x02\x06\0").unwrap();
        assert_eq!(refusal.cause(), PeerDown::Version { ours: (5, 5), theirs: (6, 8) });
        let text = refusal.cause().to_string();
        assert!(text.contains("versions 6 to 8") && text.contains("version 5"), "{text}");
        assert_eq!(refusal.emit(false)[4..7], [5, 2, 5], "a refusal names our own");
    }
}
