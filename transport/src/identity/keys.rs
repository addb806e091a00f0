//! Secrets of a session, derived from the exporter of TLS by HKDF-Expand of RFC 5869 with SHA-256.
//!
//! `docs/security.md`, *Keys*, has the labels and a test vector. Secrets are overwritten on drop, by `zeroize`: ring
//! does not offer it, the compiler may remove a plain assignment, and rustls depends on that crate already. Secrets
//! are on the heap, since a move would leave a copy on the stack. Stack frames of ring and rustls are not overwritten.
#![forbid(unsafe_code)]

use ring::digest;
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use std::fmt;
use zeroize::Zeroize;

/// Label of the TLS exporter.
pub(crate) const LABEL: &[u8] = b"EXPORTER-trunkline";
/// Size of a secret, and of a key of either AEAD, in bytes.
const SECRET: usize = 32;
/// Size of the nonce of either AEAD, in bytes.
const NONCE: usize = 12;

/// Secret bytes, overwritten on drop.
struct Secret(Box<[u8; SECRET]>);

impl Secret {
    fn zero() -> Self {
        Self(Box::new([0; SECRET]))
    }

    /// Derives another secret. The parts of `info` follow one another.
    fn derive(&self, info: &[&[u8]]) -> Self {
        let mut secret = Self::zero();
        self.expand(info, &mut secret.0[..]);
        secret
    }

    fn expand(&self, info: &[&[u8]], out: &mut [u8]) {
        struct Length(usize);
        impl KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let key = Prk::new_less_safe(HKDF_SHA256, &self.0[..]);
        let expanded = key.expand(info, Length(out.len())).and_then(|output| output.fill(out));
        assert!(expanded.is_ok(), "an output of more than 255 hashes");
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Returns the context of the exporter, from the bindings and the end-entity certificates of the TLS client and the TLS
/// server.
pub(crate) fn context(bindings: [&[u8]; 2], certificates: [&[u8]; 2]) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    for field in bindings.into_iter().chain(certificates) {
        hash.update(&u32::try_from(field.len()).unwrap_or(u32::MAX).to_le_bytes());
        hash.update(field);
    }
    let mut context = [0; 32];
    context.copy_from_slice(hash.finish().as_ref());
    context
}

/// Direction of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the TLS client to the TLS server.
    ToServer,
    /// From the TLS server to the TLS client.
    ToClient,
}

/// A lane, by the indices of its pollers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) direction: Direction,
    pub(crate) sender: u8,
    pub(crate) receiver: u8,
}

/// Output of the TLS exporter. Anyone who has it has all keys of the exchange.
#[derive(Debug)]
pub(crate) struct Exported(Secret);

impl Exported {
    /// Lets `export` fill in the exporter's output, in place.
    ///
    /// # Errors
    /// The error of `export`.
    pub(crate) fn new<E>(export: impl FnOnce(&mut [u8; SECRET]) -> Result<(), E>) -> Result<Self, E> {
        let mut secret = Secret::zero();
        export(&mut secret.0)?;
        Ok(Self(secret))
    }

    /// Derives the contents of DONE.
    pub(crate) fn done(&self) -> [u8; SECRET] {
        let mut done = [0; SECRET];
        self.0.expand(&[b"trunkline done\0"], &mut done);
        done
    }

    /// Derives what a session needs, and overwrites the exporter's output.
    pub(crate) fn into_session(self, lanes: impl IntoIterator<Item = Lane>) -> SessionKeys {
        let Self(secret) = self;
        let lane = |lane: Lane| {
            let Lane { direction, sender, receiver } = lane;
            (lane, LaneSecret(secret.derive(&[b"trunkline lane\0", &[direction as u8, sender, receiver]])))
        };
        let mut previous = [0; SECRET];
        secret.expand(&[b"trunkline renewal\0"], &mut previous);
        SessionKeys { lanes: lanes.into_iter().map(lane).collect(), previous }
    }
}

/// Values of an exchange that succeeded.
#[derive(Debug)]
pub(crate) struct SessionKeys {
    /// Secrets of phase 0.
    pub(crate) lanes: Vec<(Lane, LaneSecret)>,
    /// Entry *previous* of the next exchange, which travels in clear.
    pub(crate) previous: [u8; SECRET],
}

/// Secret of a lane in one phase.
#[derive(Debug)]
pub(crate) struct LaneSecret(Secret);

impl LaneSecret {
    /// Returns the secret of the next phase, and overwrites this one.
    pub(crate) fn next(self) -> Self {
        Self(self.0.derive(&[b"trunkline next\0"]))
    }

    /// Returns the keys of this phase.
    pub(crate) fn keys(&self) -> LaneKeys {
        let mut iv = [0; NONCE];
        self.0.expand(&[b"trunkline iv\0"], &mut iv);
        LaneKeys { key: self.0.derive(&[b"trunkline key\0"]), iv }
    }
}

/// Key and initialisation vector of a lane in one phase.
#[derive(Debug)]
pub(crate) struct LaneKeys {
    key: Secret,
    iv: [u8; NONCE],
}

impl LaneKeys {
    /// Returns the key of the AEAD.
    pub(crate) fn key(&self) -> &[u8; SECRET] {
        &self.key.0
    }

    /// Returns the nonce of a frame. `count` is the number of frames before it in the lane, in all phases.
    pub(crate) fn nonce(&self, count: u64) -> [u8; NONCE] {
        let mut nonce = self.iv;
        for (byte, count) in nonce[NONCE - 8..].iter_mut().zip(count.to_be_bytes()) {
            *byte ^= count;
        }
        nonce
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use trunkline_testkit::key_examples;

    /// The values of `docs/security.md` are those of this program, in Python 3:
    ///
    /// ```python
    /// from hashlib import sha256
    /// from hmac import digest
    /// expand = lambda key, info, length=32: digest(key, info + b"\1", "sha256")[:length]  # RFC 5869: one block
    /// fields = [bytes.fromhex(text) for text in ("010001", "01000105", "c0c1", "d0d1d2")]
    /// print("context", sha256(b"".join(len(f).to_bytes(4, "little") + f for f in fields)).hexdigest())
    /// exported = bytes(range(32))
    /// lane = expand(exported, b"trunkline lane\0\1\2\5")
    /// for name, secret in [("", lane), ("next ", expand(lane, b"trunkline next\0"))]:
    ///     iv = expand(secret, b"trunkline iv\0", 12)
    ///     nonce = (int.from_bytes(iv, "big") ^ 259).to_bytes(12, "big")
    ///     print(name, secret.hex(), expand(secret, b"trunkline key\0").hex(), iv.hex(), nonce.hex())
    /// print(expand(exported, b"trunkline done\0").hex(), expand(exported, b"trunkline renewal\0").hex())
    /// ```
    #[test]
    fn keys_are_those_of_the_document() {
        let examples = key_examples().into_iter().collect::<BTreeMap<_, _>>();
        let value = |name: &str| &examples.get(name).unwrap_or_else(|| panic!("no {name}"))[..];
        assert_eq!(LABEL, value("label of the exporter"));
        let bindings = [value("list of the TLS client"), value("list of the TLS server")];
        let certificates = [value("certificate of the TLS client"), value("certificate of the TLS server")];
        assert_eq!(context(bindings, certificates), value("context"));

        let export = |out: &mut [u8; SECRET]| value("exported").try_into().map(|exported| *out = exported);
        let exported = Exported::new(export).unwrap();
        let lane = Lane { direction: Direction::ToClient, sender: 2, receiver: 5 };
        assert_eq!(exported.done()[..], *value("DONE"));
        let SessionKeys { lanes, previous } = exported.into_session([lane]);
        assert_eq!(previous[..], *value("previous"));
        let Ok([(_, first)]) = <[_; 1]>::try_from(lanes) else { panic!("one lane") };
        let check = |secret: &LaneSecret, phase: &str| {
            let keys = secret.keys();
            assert_eq!(secret.0.0[..], *value(&format!("lane from 2 to 5{phase}")));
            assert_eq!(keys.key()[..], *value(&format!("key{phase}")));
            assert_eq!(keys.iv[..], *value(&format!("iv{phase}")));
            assert_eq!(keys.nonce(259)[..], *value(&format!("nonce of frame 259{phase}")));
        };
        check(&first, "");
        check(&first.next(), ", next phase");
    }

    #[test]
    fn lanes_share_no_key() {
        let exported = Exported::new(|_| Ok::<_, ()>(())).unwrap();
        let mut lanes = Vec::new();
        for direction in [Direction::ToServer, Direction::ToClient] {
            for (sender, receiver) in [(0, 0), (0, 1), (1, 0)] {
                lanes.push(Lane { direction, sender, receiver });
            }
        }
        let session = exported.into_session(lanes.clone());
        assert!(session.lanes.iter().map(|(lane, _)| lane).eq(&lanes), "in the order of the request");
        let mut keys = session.lanes.iter().map(|(_, secret)| *secret.keys().key()).collect::<Vec<_>>();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), lanes.len());
        assert_eq!(format!("{:?}", session.lanes[0].1), "LaneSecret(Secret)", "a log shows no secret");
    }

    #[test]
    fn a_failed_export_gives_nothing() {
        assert_eq!(
            Exported::new(|_| Err::<(), _>("during the handshake")).unwrap_err(),
            "during the handshake"
        );
    }
}
