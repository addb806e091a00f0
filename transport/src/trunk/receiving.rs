//! The way in, once a frame's sender is known and its credit was counted: positions, then messages.
#![forbid(unsafe_code)]

use super::{Resources, Trunk};
use crate::buffer::Received;
use crate::frame::{FrameError, HEADER, Header, Kind};
use crate::{Message, Origin, PollerIndex, SessionNumber};

impl Trunk {
    /// A checked frame from the peer's poller `lane`.
    ///
    /// # Errors
    /// How the peer broke the protocol.
    pub(crate) fn frame(
        &mut self,
        res: &mut Resources,
        lane: usize,
        header: &Header,
        mut frame: Received,
    ) -> Result<(), FrameError> {
        if !self.is_live() {
            // It came before the end, and its sender may believe that it arrived.
            if header.kind == Kind::Eager {
                frame.advance(HEADER);
                let message = res.receives.message(frame);
                self.hand_on(res, lane, message);
            }
            return Ok(());
        }
        self.heard(res);
        let Some(known) = self.lanes.get_mut(lane) else {
            return Err(FrameError("frame from a poller that the session does not have"));
        };
        let before = known.spender.available();
        known.spender.hear(header.grant).map_err(|violation| FrameError(violation.0))?;
        if known.spender.available() > before {
            known.took(res.time.now_ms());
        }
        if header.kind == Kind::Credit {
            let now_ms = res.time.now_ms();
            known.spender.hear_credit_frame(now_ms).map_err(|violation| FrameError(violation.0))?;
        }
        if !known.is_empty() {
            self.mark(res);
        }
        frame.advance(HEADER);
        match header.kind {
            Kind::Eager => {
                let message = res.receives.message(frame);
                self.hand_on(res, lane, message);
                Ok(())
            }
            Kind::Request => self.take_request(res, lane, frame),
            Kind::Fin => self.take_fins(res, lane, frame.as_ref()),
            Kind::Credit => Ok(()),
        }
    }

    /// Queues a received message for the upper half.
    pub(super) fn hand_on(&mut self, res: &mut Resources, lane: usize, message: Message) {
        self.lanes[lane].counters.count_received();
        let poller = PollerIndex(u16::try_from(lane).unwrap_or(u16::MAX));
        res.events.message(Origin { peer: self.peer, session: SessionNumber(self.number), poller }, message);
    }
}
