//! The receive path after a frame's sender is identified and its credit is counted.
#![forbid(unsafe_code)]

use super::{Resources, Trunk};
#[cfg(feature = "identity")]
use crate::PeerIdentity;
use crate::buffer::Received;
#[cfg(feature = "identity")]
use crate::command::CmCommand;
use crate::wire::frame::{FrameError, FrameKind, HANDSHAKE, Header};
#[cfg(feature = "identity")]
use crate::wire::handshake::{FRAGMENT, Fragment, HANDSHAKE_FRAME, Part};
use crate::wire::settings::Settings;
use crate::wire::{BUNDLE_BYTES, BUNDLED_BYTES};
use crate::{Origin, PeerEvent, PollerIndex, SessionNumber};
use std::sync::atomic::Ordering;

/// Maximum number of handshake frames from a peer in ten seconds, enough for two exchanges.
#[cfg(feature = "identity")]
const MOST_HANDSHAKES: u8 = 24;

impl Trunk {
    /// Applies the positions in the header of a frame from the peer's poller `lane`. Returns true if messages in the
    /// frame are accepted. While the trunk is being taken down, they are accepted if the lane has begun, because they
    /// may have been acknowledged to the sender.
    ///
    /// # Errors
    /// Returns the rule of the protocol that the peer broke.
    pub(crate) fn apply_header(
        &mut self,
        res: &mut Resources,
        lane: usize,
        header: &Header,
    ) -> Result<bool, FrameError> {
        let is_live = self.is_live();
        let Some(known) = self.lanes.get_mut(lane) else {
            let broken = FrameError::Broken("frame from a poller that the session does not have");
            return if is_live { Err(broken) } else { Ok(false) };
        };
        let has_begun = known.heard.is_some();
        if !is_live {
            return Ok(has_begun);
        }
        if !has_begun && header.kind != FrameKind::Settings {
            return Err(FrameError::Broken("frame before the settings of its lane"));
        }
        let now_ms = res.time.now_ms();
        let before = known.spender.available();
        known.spender.apply_grant(header.grant).map_err(|violation| FrameError::Broken(violation.0))?;
        let has_more = known.spender.available() > before;
        if has_more {
            known.took(now_ms);
        }
        if header.kind == FrameKind::Credit {
            known.spender.apply_credit_frame(now_ms).map_err(|violation| FrameError::Broken(violation.0))?;
        }
        if !known.is_empty() {
            self.mark(res);
        }
        if has_more {
            self.keep_busy(res);
        }
        self.heard(res);
        Ok(true)
    }

    /// Handles a frame from the peer's poller `lane`. The caller handles the messages in it.
    ///
    /// # Errors
    /// Returns the rule of the protocol that the peer broke.
    pub(crate) fn frame(
        &mut self,
        res: &mut Resources,
        lane: usize,
        header: &Header,
        frame: Received,
    ) -> Result<(), FrameError> {
        let body = frame.as_ref().get(header.bytes..).unwrap_or_default();
        if !self.is_live() {
            // Messages may follow these settings.
            if let (FrameKind::Settings, Some(known)) = (header.kind, self.lanes.get_mut(lane)) {
                known.heard = known.heard.or_else(|| Settings::parse(body).ok());
            }
            #[cfg(feature = "identity")]
            if header.kind == FrameKind::Handshake {
                // Messages may follow a SWITCH.
                return self.take_switch(res, lane, &frame).map(drop);
            }
            return Ok(());
        }
        match header.kind {
            FrameKind::Announcement => self.take_request(res, lane, header, frame),
            FrameKind::Fin => self.take_fins(res, lane, body),
            FrameKind::Settings if self.bound_settings.as_ref().is_some_and(|bound| **bound != *body) => {
                Err(FrameError::Broken("settings differ from those of its handshake"))
            }
            FrameKind::Settings => self.take_settings(res, lane, Settings::parse(body)?),
            FrameKind::Unknown => {
                res.shared.unknown_frames.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            FrameKind::Credit | FrameKind::Message | FrameKind::Bundle => Ok(()),
            #[cfg(feature = "identity")]
            FrameKind::Handshake => self.take_handshake(res, lane, &frame),
            #[cfg(not(feature = "identity"))]
            FrameKind::Handshake => Err(FrameError::Kind(HANDSHAKE)),
        }
    }

    /// Handles a frame of a renewal, and passes a copy to the CM machine unless it is a SWITCH.
    #[cfg(feature = "identity")]
    #[cold]
    fn take_handshake(
        &mut self,
        res: &mut Resources,
        lane: usize,
        frame: &Received,
    ) -> Result<(), FrameError> {
        if !matches!(self.identity, PeerIdentity::Proven(_)) {
            return Err(FrameError::Kind(HANDSHAKE));
        }
        if self.take_switch(res, lane, frame)? {
            return Ok(());
        }
        if lane != 0 || res.index.0 != 0 {
            return Err(FrameError::Broken("handshake frame from or to another poller than 0"));
        }
        let tens = res.time.now_ms() / 10_000;
        let (when, count) = self.handshakes;
        let count = if when == tens { count } else { 0 };
        if count >= MOST_HANDSHAKES {
            return Err(FrameError::Broken("more handshake frames than two renewals have"));
        }
        self.handshakes = (tens, count + 1);
        let frame = frame.as_ref();
        if !(FRAGMENT..=HANDSHAKE_FRAME).contains(&frame.len()) {
            return Err(FrameError::Broken("handshake frame of an invalid length"));
        }
        let (peer, number, frame) = (self.peer, self.number, frame.into());
        res.shared.cm.command(CmCommand::Handshake { peer, number, frame });
        Ok(())
    }

    /// Handles a SWITCH, after which frames are decrypted with the keys of the renewal. Returns false if the frame is
    /// not a SWITCH.
    #[cfg(feature = "identity")]
    fn take_switch(&mut self, res: &Resources, lane: usize, frame: &Received) -> Result<bool, FrameError> {
        if Fragment::parse(frame.as_ref())?.part != Part::Switch {
            return Ok(false);
        }
        let renewed = self.renewed.take_opens(lane).ok_or(FrameError::Broken("SWITCH without a renewal"))?;
        if let Some(seal) = self.lanes.get_mut(lane).and_then(|lane| lane.seal.as_mut()) {
            seal.peer_switched(renewed);
        }
        self.switched(res);
        Ok(true)
    }

    /// Handles the settings of the peer's poller `lane`. The first settings of a session bring it up for the driver.
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
                let most = BUNDLE_BYTES.min(self.max_frame);
                self.max_bundle = usize::try_from(settings.max_bundle).unwrap_or(usize::MAX).min(most);
                self.max_bundle = self.max_bundle.saturating_sub(self.pipeline.overhead());
                let most = if self.max_bundle > 0 { BUNDLED_BYTES } else { 0 };
                self.max_bundled = most.min(self.max_message).min(res.shared.limits.max_message_bytes);
                let pollers = u16::try_from(self.lanes.len()).unwrap_or(u16::MAX);
                let session = SessionNumber(self.number);
                let (epoch, identity) = (self.epoch, self.identity.clone());
                res.events.peer(self.peer, PeerEvent::Up { session, epoch, pollers, identity });
            }
        }
        self.lanes[lane].heard = Some(settings);
        self.lanes[lane].took(res.time.now_ms());
        self.mark(res);
        Ok(())
    }

    /// Counts a message from the peer's poller `lane`.
    #[inline]
    pub(crate) fn count_received(&self, lane: usize) {
        self.lanes.get(lane).inspect(|lane| lane.counters.count_received());
    }

    /// Returns the origin of messages from the peer's poller `lane`.
    pub(crate) fn origin(&self, lane: usize) -> Origin {
        let poller = PollerIndex(u16::try_from(lane).unwrap_or(u16::MAX));
        Origin { peer: self.peer, session: SessionNumber(self.number), poller }
    }
}
