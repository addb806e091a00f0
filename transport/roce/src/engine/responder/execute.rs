//! Execution of a checked packet, immediately or when the outcome of its placement arrives.

use super::saved::Saved;
use super::{EVENT_FAILED, Handled, Message, PHASE_ERROR, Pending, Refusal, ResponderState, count};
use crate::engine::segment::{Class, RequestKind, packets};
use crate::engine::{Placement, PlacementRequest, RemoteRange, Target, Work};
use crate::wire::{NakCode, Operation, Packet, RnrTimer, Syndrome};
use trunkline_verbs::{IoAddress, Psn, RemoteAddress, Rkey, SrqNumber};

impl ResponderState {
    /// Passes a checked packet to the target and finishes it, unless the target answers later.
    pub(super) fn execute(
        &mut self,
        pending: Pending,
        class: Class,
        packet: &Packet<'_>,
        target: &mut impl Target,
    ) -> Handled {
        let start = RemoteAddress { address: IoAddress(pending.address), rkey: Rkey(pending.rkey) };
        let range = RemoteRange { start, length: pending.length };
        let (first, last) = (class.first, class.last);
        let offset = self.received(class);
        let immediate = packet.immediate;
        let payload = packet.payload;
        let work = match (class.kind, &packet.atomic) {
            (RequestKind::Send, _) => Work::Send { offset, payload, first, last, immediate },
            (RequestKind::Write, _) => Work::Write { range, offset, payload, first, last, immediate },
            (RequestKind::Read, _) => Work::Read { range },
            (RequestKind::Atomic, Some(eth)) if pending.operation == Operation::COMPARE_SWAP.0 => {
                Work::CompareSwap { remote: start, compare: eth.compare, swap: eth.swap_or_add }
            }
            (RequestKind::Atomic, eth) => {
                Work::FetchAdd { remote: start, add: eth.as_ref().map_or(0, |eth| eth.swap_or_add) }
            }
        };
        let placement = target.place(&PlacementRequest::new(packet, work));
        self.settle(pending, class, placement)
    }

    /// Finishes a checked packet, unless its placement is answered later.
    pub(super) fn settle(&mut self, pending: Pending, class: Class, placement: Placement) -> Handled {
        if placement == Placement::Later {
            self.pending = Pending { active: 1, ..pending };
            return Handled::Waiting;
        }
        self.finish(pending, class, placement)
    }

    /// Handles the outcome of the waiting placement. Has no effect if no placement is waiting, or if the outcome is `Later`.
    /// Pass in the queued packets afterwards. If the QP has left its receiving states, the placement is cancelled. Returns
    /// the outcome of the packet, or [`Handled::Dropped`] if no placement is waiting.
    pub fn answer(&mut self, placement: Placement) -> Handled {
        if !self.is_waiting() || placement == Placement::Later {
            return Handled::Dropped;
        }
        let pending = std::mem::take(&mut self.pending);
        match Self::class_of(&pending) {
            Some(class) => self.finish(pending, class, placement),
            None => Handled::Dropped,
        }
    }

    #[inline]
    fn finish(&mut self, pending: Pending, class: Class, placement: Placement) -> Handled {
        let old = match placement {
            Placement::Placed if class.kind != RequestKind::Atomic => 0,
            Placement::Atomic(old) if class.kind == RequestKind::Atomic => old,
            _ => return self.decline(Psn::new(pending.psn), placement),
        };
        self.accept(&pending, class, old);
        Handled::Taken
    }

    /// Refuses or ignores a packet that was not placed.
    fn decline(&mut self, psn: Psn, placement: Placement) -> Handled {
        match placement {
            // The target returned an outcome that is invalid for the request.
            Placement::Placed | Placement::Atomic(_) | Placement::Later => {
                self.fail(NakCode::REMOTE_OPERATIONAL, psn);
            }
            Placement::Rnr => {
                // contract rocev2 7.10, G9. Later packets of this burst have PSNs beyond the expected one and are dropped
                // silently, because the peer sends them again anyway.
                self.nak_sent = 1;
                count(&mut self.counters.rnr_naks);
                self.refuse(Syndrome::Rnr { timer: RnrTimer(self.min_rnr_timer) }, psn);
            }
            Placement::Nak(code) => self.fail(code, psn),
            Placement::Drop => {
                self.nak_sent = 1;
                count(&mut self.counters.dropped_policy);
            }
        }
        Handled::Refused
    }

    /// Advances past a placed packet, and stores the response that it requires.
    #[inline]
    fn accept(&mut self, pending: &Pending, class: Class, old: u64) {
        let psns = match class.kind {
            RequestKind::Send | RequestKind::Write => packets(pending.payload, self.mtu()),
            RequestKind::Read => packets(pending.length, self.mtu()),
            RequestKind::Atomic => 1,
        };
        self.advance(psns, class.last);
        match class.kind {
            RequestKind::Send | RequestKind::Write => {
                self.ack_due |= pending.ack_request;
                self.message = if class.last {
                    Message::default()
                } else {
                    Message {
                        kind: if class.kind == RequestKind::Send { Message::SEND } else { Message::WRITE },
                        srq: pending.srq,
                        received: self.received(class).saturating_add(pending.payload),
                        address: pending.address,
                        rkey: pending.rkey,
                        length: pending.length,
                    }
                };
            }
            RequestKind::Read | RequestKind::Atomic => self.saved.keep(Saved {
                is_atomic: class.kind == RequestKind::Atomic,
                is_active: true,
                is_replay: false,
                first_psn: pending.psn,
                psns,
                msn: self.msn,
                srq: pending.srq,
                rkey: pending.rkey,
                address: pending.address,
                length: pending.length,
                start: 0,
                next: 0,
                end: pending.length,
                old,
            }),
        }
    }

    /// Counts a placed packet, and expects the next one.
    #[inline]
    pub(super) fn advance(&mut self, psns: u32, ends_message: bool) {
        count(&mut self.counters.packets);
        count(&mut self.serial);
        self.expected = Psn::new(self.expected).plus(psns).get();
        if ends_message {
            self.msn = Psn::new(self.msn).plus(1).get();
        }
    }

    /// Sets the NAK to be sent next.
    pub(super) fn refuse(&mut self, syndrome: Syndrome, psn: Psn) {
        self.refusal = Refusal { due: 1, syndrome: syndrome.byte(), psn: psn.get() };
    }

    /// Moves the QP to ERR and sets a fatal NAK. Responses to earlier requests are still sent first
    /// (contract rocev2 7.8).
    pub(super) fn fail(&mut self, code: NakCode, psn: Psn) {
        self.phase = PHASE_ERROR;
        self.failure = code.0;
        self.events |= EVENT_FAILED;
        count(&mut self.counters.fatal_naks);
        self.refuse(Syndrome::Nak(code), psn);
    }

    /// Returns the SRQ for a stored number, only for XRC.
    pub(super) fn srq(&self, number: u32) -> Option<SrqNumber> {
        self.is_xrc().then(|| SrqNumber::new(number))
    }
}
