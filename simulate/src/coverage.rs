//! Counts of the events in a run, by kind.
//!
//! A simulation that no longer exercises a feature would still pass. A campaign therefore fails if any kind of event is
//! too rare.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! kinds {
    ($($name:ident $text:literal $fault:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum EventKind {
            $(
                #[doc = $text]
                $name,
            )*
        }

        impl EventKind {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the name of the kind in summaries.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns true if the kind is a fault. Faults of single packets are excluded, because they are too frequent
            /// to be significant.
            pub(crate) const fn is_fault(self) -> bool {
                match self {
                    $(Self::$name => $fault,)*
                }
            }
        }
    };
}

kinds! {
    CallMade "call made" false,
    CallSucceeded "call succeeded" false,
    CallFailed "call failed" false,
    CallTimedOut "call timed out" false,
    CallCancelled "call cancelled" true,
    OneWay "one-way call" false,
    EagerMessage "message above 1 KiB by SEND" false,
    LargeMessage "large message by READ" false,
    LentMessage "large message out of a registered buffer" false,
    Burst "burst of calls" false,
    Ordered "ordered channel" false,
    StreamOpened "stream opened" false,
    StreamItem "item of a stream received" false,
    StreamFinished "stream finished" false,
    StreamDropped "stream dropped by its client" false,
    StreamReset "stream of a client dropped by its handler" false,
    StreamLost "stream ended by a lost session" false,
    StreamIdle "stream ended by its idle timeout" false,
    LocalCall "call from a task on a poller" false,
    LateCall "call late before it could be sent" false,
    NestedCall "call made inside a handler" false,
    HandlerSlept "handler waited" false,
    HandlerBlocked "handler blocked its poller" true,
    HandlerPanicked "handler panicked" true,
    HandlerHung "handler never returned" true,
    HandlerPooled "handler started in the worker pool" false,
    ArgumentsKept "handler kept decoded arguments" false,
    HandlerRefused "handler returned an error" false,
    OverXrc "run over XRC" false,
    OverRc "run over RC" false,
    SeveralPollers "run with several pollers" false,
    SharedHost "run with processes that share an address" false,
    NameProved "session after proof of both names" false,
    NameRefused "call refused for the name of its server" false,
    NameRenewed "proof of names repeated in a live session" false,
    LocalUserExempt "session without proof between processes of a host" false,
    PacketRelayed "packet relayed between processes of a host" false,
    PortTakenOver "port 4791 taken over from a dead process" false,
    MemberKilled "process killed while others share its address" true,
    StoresTorn "process killed between two stores" true,
    PacketInMemory "packet through shared memory" false,
    MemoryScribbled "nonsense written into shared memory" true,
    MemoryForged "packet put into shared memory in the name of another process" true,
    PathEnded "shared memory of two processes given up" false,
    PathChanged "call while its packets change their path" false,
    StoresTornUnderLoad "process killed between two stores under load" true,
    CreditsCounted "credits of a pair counted" false,
    PacketLost "packet lost" false,
    PacketDoubled "packet duplicated" false,
    PacketOvertaken "packet reordered" false,
    PacketCorrupted "packet corrupted" false,
    PacketCut "packet cut off by a partition" false,
    PacketWalled "packet dropped by a firewall" false,
    PacketTooLarge "packet too large for its path" false,
    PacketUntranslated "packet dropped by an address translator" false,
    PacketDropped "packet dropped by a full queue" false,
    PacketMarked "packet marked by a long queue" false,
    PacketForged "packet of a connection forged" false,
    RequestForged "connection request forged" false,
    MessageForged "other CM message forged" false,
    Partition "partition" true,
    MachinePaused "machine stopped" true,
    ProcessPaused "process stopped" true,
    NodeKilled "node killed" true,
    NodeRestarted "node restarted" true,
    CallAfterRestart "first call after its server's restart" false,
    SuccessorReached "successor reached after a stale session" false,
    CallWaited "call that waits for its server" false,
    CallRefusedWhileAway "call refused at once since its server is away" false,
    VanishedPeerCalled "call to a node that vanished while idle" false,
    ServerFound "server found by a name" false,
    ReplicaDrained "server of a balanced channel shut down under load" true,
    ReplicaKilled "server of a balanced channel killed under load" true,
    ReplicaFailed "server of a balanced channel failed calls under load" true,
    CallRepeated "idempotent call repeated at another server" false,
    NodeShutDown "node shut down under load" true,
    NodeDrained "node drained under load" true,
    CallRefusedDraining "call refused by a draining server" false,
    CallFoundRoom "call that waited for room" false,
    SmallCallPassed "small call next to large ones that waited for room" false,
    ChainRefused "chain of nested calls refused for lack of room" false,
    CallRefusedByLimit "call refused by the limit of its method" false,
    HandlerForwarded "handler finished with nested calls while its node drained" false,
    CookieReturned "cookie returned by a stranger" false,
    PeerTookNothing "peer took no replies" true,
    PeerSentBeyond "peer sent beyond its credit" true,
    PeerFinishedNothing "peer finished no large message" true,
    PeerNamedWrongKeys "peer announced under wrong keys" true,
    PeerSentGarbage "peer sent garbage in place of frames" true,
    PeerHoardedCredit "peer kept all credit that it got" true,
    PeerReadBeside "peer READ beside what was announced to it" true,
    RestartClaimed "restart claimed at the address of a live session" true,
    PathTampered "sealed packet changed on its path" true,
    StrangersCrowded "many sessions begun by one stranger" true,
    HostCrowded "session refused to a host that has its share" true,
    FirewallCrossed "client behind a firewall" false,
    NarrowPathCrossed "path MTU found by lost packets" false,
    TranslatorCrossed "client behind an address translator" false,
    MappingsLost "address translator that lost its mappings" true,
    BottleneckShared "link of little bandwidth shared" false,
    DeviceRemoved "device removed" true,
    DeviceRestored "device restored" true,
}

#[derive(Debug)]
pub(crate) struct Coverage(Vec<AtomicU64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(EventKind::ALL.iter().map(|_| AtomicU64::new(0)).collect())
    }
}

impl Coverage {
    pub(crate) fn count(&self, kind: EventKind) {
        self.add(kind, 1);
    }

    pub(crate) fn add(&self, kind: EventKind, events: u64) {
        self.0[kind as usize].fetch_add(events, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, kind: EventKind) -> u64 {
        self.0[kind as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn faults(&self) -> u64 {
        EventKind::ALL.iter().filter(|kind| kind.is_fault()).map(|kind| self.of(*kind)).sum()
    }
}
