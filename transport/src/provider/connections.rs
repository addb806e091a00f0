//! The kinds of connections that a node can use, XRC or RC on devices without XRC.
//!
//! [`choose`] returns the kind and the reason for it. Over XRC, a poller's INI reaches any poller of the peer by SRQ
//! number. Over RC, each poller has a basic SRQ, and a poller's connection ends at one poller of the peer. That poller
//! forwards the frames for other pollers (`poller/crossings.rs`). RPC code does not depend on the kind.
#![forbid(unsafe_code)]

use crate::StartError;
use std::fmt;
use std::str::FromStr;
use trunkline_verbs::{DeviceAttributes, DeviceCapabilities, QpType};

/// The kind of a node's connections. Two nodes can communicate only if both use the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Connections {
    /// XRC if the device supports it, otherwise RC.
    #[default]
    Auto,
    /// XRC. A node does not start on a device without XRC.
    Xrc,
    /// RC, for example to communicate with nodes whose devices lack XRC.
    Rc,
}

impl FromStr for Connections {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "xrc" => Ok(Self::Xrc),
            "rc" => Ok(Self::Rc),
            other => Err(format!("invalid kind of connections {other:?}: expected `auto`, `xrc` or `rc`")),
        }
    }
}

/// The chosen kind of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    Xrc,
    Rc,
}

impl ConnectionKind {
    /// Returns the byte that stands for the kind in the handshake.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Xrc => 1,
            Self::Rc => 2,
        }
    }

    /// Decodes the kind from the handshake.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::Xrc, Self::Rc].into_iter().find(|kind| kind.code() == code)
    }

    /// Returns the type of the QP that a poller sends through.
    pub(crate) fn sending(self) -> QpType {
        match self {
            Self::Xrc => QpType::XrcIni,
            Self::Rc => QpType::Rc,
        }
    }

    /// Returns the type of the QP that receives from a peer's poller.
    pub(crate) fn receiving(self) -> QpType {
        match self {
            Self::Xrc => QpType::XrcTgt,
            Self::Rc => QpType::Rc,
        }
    }

    /// Returns the name for reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Xrc => "xrc",
            Self::Rc => "rc",
        }
    }
}

impl fmt::Display for ConnectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Chooses the kind of a device's connections. Returns it with the reason.
///
/// # Errors
/// Returns an error if XRC is requested and the device does not support it.
pub(crate) fn choose(
    asked: Connections,
    device: &DeviceAttributes,
) -> Result<(ConnectionKind, String), StartError> {
    let has_xrc = device.capabilities.contains(DeviceCapabilities::XRC);
    match asked {
        Connections::Auto if has_xrc => {
            Ok((ConnectionKind::Xrc, format!("the device {} has XRC", device.name)))
        }
        Connections::Auto => Ok((ConnectionKind::Rc, format!("the device {} has no XRC", device.name))),
        Connections::Xrc if has_xrc => Ok((ConnectionKind::Xrc, "asked for".to_owned())),
        Connections::Xrc => Err(StartError::NoXrc(device.name.clone())),
        Connections::Rc => Ok((ConnectionKind::Rc, "asked for".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_softrdma::device::{LinkChoice, SoftDevice, SoftOptions};
    use trunkline_verbs::Device;

    #[test]
    fn requested_connections_match_device_or_are_refused() {
        let kind = |asked, without_xrc| {
            let link = LinkChoice::InProcess(std::sync::Arc::default());
            let addresses = vec!["127.0.0.1".parse().unwrap()];
            let options = SoftOptions { link, addresses, without_xrc, ..SoftOptions::default() };
            let device = SoftDevice::open(options).unwrap();
            choose(asked, device.attributes())
        };
        for (asked, without_xrc, chosen) in [
            (Connections::Auto, false, ConnectionKind::Xrc),
            (Connections::Auto, true, ConnectionKind::Rc),
            (Connections::Xrc, false, ConnectionKind::Xrc),
            (Connections::Rc, false, ConnectionKind::Rc),
            (Connections::Rc, true, ConnectionKind::Rc),
        ] {
            let (kind, why) = kind(asked, without_xrc).unwrap();
            assert_eq!(kind, chosen, "{asked:?}: {why}");
            assert!(!why.is_empty());
        }
        let refused = kind(Connections::Xrc, true).unwrap_err();
        assert!(matches!(&refused, StartError::NoXrc(device) if device == "trunkline0"), "{refused}");
    }

    #[test]
    fn connection_names_are_parsed() {
        for (text, connections) in
            [("auto", Connections::Auto), ("xrc", Connections::Xrc), ("rc", Connections::Rc)]
        {
            assert_eq!(text.parse(), Ok(connections));
        }
        assert!("RC".parse::<Connections>().is_err());
    }
}
