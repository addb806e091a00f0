//! The way in, once a frame's sender is known and its credit was counted: positions, then messages.
#![forbid(unsafe_code)]

use super::{Resources, Trunk};
use crate::buffer::Received;
use crate::frame::{FrameError, Header, Kind};
use crate::settings::Settings;
use crate::{Message, Origin, PeerEvent, PollerIndex, SessionNumber};
use std::sync::atomic::Ordering;

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
        frame: Received,
    ) -> Result<(), FrameError> {
        if !self.is_live() {
            self.last_frame(res, lane, header, frame);
            return Ok(());
        }
        self.heard(res);
        let Some(known) = self.lanes.get_mut(lane) else {
            return Err(FrameError::Broken("frame from a poller that the session does not have"));
        };
        match (known.heard, header.kind) {
            (None, Kind::Settings) | (Some(_), _) => {}
            (None, _) => return Err(FrameError::Broken("frame before the settings of its lane")),
        }
        let before = known.spender.available();
        known.spender.hear(header.grant).map_err(|violation| FrameError::Broken(violation.0))?;
        if known.spender.available() > before {
            known.took(res.time.now_ms());
        }
        if header.kind == Kind::Credit {
            let now_ms = res.time.now_ms();
            known.spender.hear_credit_frame(now_ms).map_err(|violation| FrameError::Broken(violation.0))?;
        }
        if !known.is_empty() {
            self.mark(res);
        }
        match header.kind {
            Kind::Message => {
                let message = res.receives.message(frame);
                self.hand_on(res, lane, message);
                Ok(())
            }
            Kind::Announcement => self.take_request(res, lane, header.bytes, frame),
            Kind::Fin => self.take_fins(res, lane, frame.as_ref().get(header.bytes..).unwrap_or_default()),
            Kind::Credit => Ok(()),
            Kind::Settings => {
                let body = frame.as_ref().get(header.bytes..).unwrap_or_default();
                self.take_settings(res, lane, Settings::parse(body)?)
            }
            Kind::Unknown => {
                res.shared.unknown_frames.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// A frame that came before the end, whose sender may believe that it arrived: messages are handed on, those
    /// included whose lane begins only now.
    fn last_frame(&mut self, res: &mut Resources, lane: usize, header: &Header, frame: Received) {
        let Some(known) = self.lanes.get_mut(lane) else { return };
        match header.kind {
            Kind::Settings if known.heard.is_none() => {
                let body = frame.as_ref().get(header.bytes..).unwrap_or_default();
                known.heard = Settings::parse(body).ok();
            }
            Kind::Message if known.heard.is_some() => {
                let message = res.receives.message(frame);
                self.hand_on(res, lane, message);
            }
            _ => {}
        }
    }

    /// The peer's poller `lane` begins. With the first one that does, the session is up for the upper half.
    fn take_settings(
        &mut self,
        res: &mut Resources,
        lane: usize,
        settings: Settings,
    ) -> Result<(), FrameError> {
        if self.lanes[lane].heard.is_some() {
            return Err(FrameError::Broken("settings twice in a lane"));
        }
        match self.settings() {
            Some(earlier) if earlier != settings => {
                return Err(FrameError::Broken("settings differ between its pollers"));
            }
            Some(_) => {}
            None => {
                self.max_message = usize::try_from(settings.max_message).unwrap_or(usize::MAX);
                self.max_frame = usize::try_from(settings.max_frame).unwrap_or(usize::MAX);
                self.large_messages = settings.large_messages;
                let pollers = u16::try_from(self.lanes.len()).unwrap_or(u16::MAX);
                res.events.peer(self.peer, PeerEvent::Up { epoch: self.epoch, pollers });
            }
        }
        self.lanes[lane].heard = Some(settings);
        self.lanes[lane].took(res.time.now_ms());
        self.mark(res);
        Ok(())
    }

    /// Queues a received message for the upper half.
    pub(super) fn hand_on(&mut self, res: &mut Resources, lane: usize, message: Message) {
        self.lanes[lane].counters.count_received();
        res.events.message(self.origin(lane), message);
    }

    /// Where messages of the peer's poller `lane` come from.
    pub(super) fn origin(&self, lane: usize) -> Origin {
        let poller = PollerIndex(u16::try_from(lane).unwrap_or(u16::MAX));
        Origin { peer: self.peer, session: SessionNumber(self.number), poller }
    }
}
