//! What follows when a CQ loses a completion (contract H5).
//!
//! Owns nothing: it looks for what completes into a broken CQ. QPs that name it as a CQ of theirs
//! go to ERR. An XRC SRQ that completes into it is in error, which its senders see as an empty
//! one (contract G10); the TGTs before it go on, since they serve others too.

use super::Card;
use super::completions::Completer;
use super::target::ReceiveSource;
use trunkline_verbs::{AsyncEventKind, AsyncSubject, QpState};

impl Card {
    /// Sees to what completes into CQs that were broken since the last call.
    pub(super) fn serve_overflows(&mut self) {
        // Ending QPs flushes their work, which may break further CQs.
        while self.overflows_served != self.counters.cq_overflows {
            self.overflows_served = self.counters.cq_overflows;
            self.break_srqs();
            self.end_qps();
        }
    }

    fn break_srqs(&mut self) {
        for number in self.srqs.numbers() {
            let Some(srq) = self.srqs.get_mut(number) else { continue };
            let broken = srq.xrc.as_ref().is_some_and(|side| side.cq.is_overflowed());
            if broken && !srq.queue.is_broken() {
                srq.queue.break_off();
                self.events.raise(AsyncEventKind::SrqError, AsyncSubject::Srq(srq.context));
            }
        }
    }

    fn end_qps(&mut self) {
        let Self { qps, srqs, counters, events, ready, .. } = self;
        for number in qps.numbers() {
            let Some(qp) = qps.get_mut(number) else { continue };
            let receives = match &qp.reception.source {
                ReceiveSource::Own { cq, .. } | ReceiveSource::Basic { cq, .. } => cq.is_overflowed(),
                ReceiveSource::None | ReceiveSource::Xrc { .. } => false,
            };
            let broken = receives || qp.send_cq.as_ref().is_some_and(|cq| cq.is_overflowed());
            if !broken || matches!(qp.attributes.state, QpState::Error | QpState::Reset) {
                continue;
            }
            qp.fail();
            qp.enter_error(srqs, &mut Completer { events, counters });
            qp.raise(AsyncEventKind::QpFatal, events);
            if !qp.is_ready {
                qp.is_ready = true;
                ready.push_back(number);
            }
        }
    }
}
