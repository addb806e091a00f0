//! The settings of a node, which are its limits, sent first on each lane as a list that later versions may extend.
//!
//! The trunk sends and receives one list on each lane. All bytes come from a peer, so this code must not panic.
//!
//! ```text
//! 0 type (2), 0x8000 is critical   2 length of the value (2)   4 value
//! ```
#![forbid(unsafe_code)]

use crate::wire::LEAST_FRAME;
use crate::wire::frame::FrameError;

/// Bit of critical types. A receiver must reject unknown critical types.
pub(crate) const CRITICAL: u16 = 0x8000;
const MAX_MESSAGE: u16 = 1;
const MAX_FRAME: u16 = 2;
const LARGE_MESSAGES: u16 = 3;
const MAX_BUNDLE: u16 = 4;
/// Size of an entry without its value, in bytes.
const PREFIX: usize = 4;

/// Limits of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Maximum size of a message, including head and body.
    pub(crate) max_message: u64,
    /// Maximum size of a frame that the node's receives hold.
    pub(crate) max_frame: u32,
    /// Maximum number of announced messages without a FIN, per lane.
    pub(crate) large_messages: u32,
    /// Maximum size of a bundle of messages; 0 if the node does not accept bundles.
    pub(crate) max_bundle: u32,
}

pub(crate) fn push_entry(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(kind.to_le_bytes());
    out.extend(u16::try_from(value.len()).unwrap_or_default().to_le_bytes());
    out.extend(value);
}

/// Returns the type and the value of the first entry of a list, and the rest of the list. Returns `None` if the list is
/// empty or malformed.
pub(crate) fn split_entry(list: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (&[kind_low, kind_high, low, high], rest) = list.split_first_chunk::<PREFIX>()?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
    Some((u16::from_le_bytes([kind_low, kind_high]), value, rest))
}

impl Settings {
    /// Encodes the settings as the body of a frame.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut entry = |kind, value: &[u8]| push_entry(&mut out, kind, value);
        entry(MAX_MESSAGE, &self.max_message.to_le_bytes());
        entry(MAX_FRAME, &self.max_frame.to_le_bytes());
        entry(LARGE_MESSAGES, &self.large_messages.to_le_bytes());
        if self.max_bundle > 0 {
            entry(MAX_BUNDLE, &self.max_bundle.to_le_bytes());
        }
        out
    }

    /// Decodes the body of a frame. Unknown entries are skipped.
    ///
    /// # Errors
    /// Returns the first fault, or the number of the first unknown critical entry.
    pub(crate) fn parse(mut body: &[u8]) -> Result<Self, FrameError> {
        let (mut max_message, mut max_frame, mut large_messages, mut max_bundle) = (None, None, None, None);
        while let Some((kind, value, rest)) = split_entry(body) {
            body = rest;
            let is_new = match kind & !CRITICAL {
                MAX_MESSAGE => max_message.replace(u64::from_le_bytes(exactly(value)?)).is_none(),
                MAX_FRAME => max_frame.replace(u32::from_le_bytes(exactly(value)?)).is_none(),
                LARGE_MESSAGES => large_messages.replace(u32::from_le_bytes(exactly(value)?)).is_none(),
                MAX_BUNDLE => max_bundle.replace(u32::from_le_bytes(exactly(value)?)).is_none(),
                unknown if kind & CRITICAL != 0 => return Err(FrameError::Setting(unknown)),
                _ => true,
            };
            if !is_new {
                return Err(FrameError::Broken("a setting appears twice"));
            }
        }
        let (Some(max_message), Some(max_frame), Some(large_messages), true) =
            (max_message, max_frame, large_messages, body.is_empty())
        else {
            return Err(MALFORMED);
        };
        if max_frame < LEAST_FRAME || large_messages == 0 {
            return Err(FrameError::Broken("a setting is smaller than every node needs"));
        }
        Ok(Self { max_message, max_frame, large_messages, max_bundle: max_bundle.unwrap_or(0) })
    }
}

const MALFORMED: FrameError = FrameError::Broken("settings are malformed or incomplete");

fn exactly<const N: usize>(value: &[u8]) -> Result<[u8; N], FrameError> {
    value.try_into().map_err(|_| MALFORMED)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings =
        Settings { max_message: 1 << 40, max_frame: LEAST_FRAME, large_messages: 64, max_bundle: 0 };

    fn with(more: &[u8]) -> Result<Settings, FrameError> {
        Settings::parse(&[&SETTINGS.emit(), more].concat())
    }

    #[test]
    fn unknown_settings_are_skipped_unless_critical() {
        assert_eq!(with(&[]), Ok(SETTINGS));
        assert_eq!(with(&[9, 0, 2, 0, 7, 7, 10, 0, 0, 0]), Ok(SETTINGS));
        assert_eq!(with(&[9, 0x80, 0, 0]), Err(FrameError::Setting(9)));
        let bundles = Settings { max_bundle: 4096, ..SETTINGS };
        assert_eq!(with(&[4, 0, 4, 0, 0, 16, 0, 0]), Ok(bundles));
        assert_eq!(Settings::parse(&bundles.emit()), Ok(bundles));
    }

    #[test]
    fn malformed_settings_are_refused() {
        for more in [&[9][..], &[9, 0, 1, 0], &[1, 0, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0]] {
            assert!(matches!(with(more), Err(FrameError::Broken(_))), "{more:?}");
        }
        let good = SETTINGS.emit();
        for length in 0..good.len() {
            assert!(Settings::parse(&good[..length]).is_err(), "{length} bytes");
        }
        for small in
            [Settings { max_frame: LEAST_FRAME - 1, ..SETTINGS }, Settings { large_messages: 0, ..SETTINGS }]
        {
            assert!(Settings::parse(&small.emit()).is_err(), "{small:?}");
        }
    }
}
