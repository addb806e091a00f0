//! Secrets of a session, derived from the TLS exporter with HKDF-Expand (RFC 5869) and SHA-256.
//!
//! `docs/book/src/why/security.md`, *Keys*, lists the labels and a test vector. Secrets are overwritten on drop with
//! `zeroize`, since ring does not offer this and the compiler may remove a plain assignment. rustls already depends
//! on that crate. Secrets are on the heap, since a move would leave a copy on the stack. Stack frames of ring and
//! rustls are not overwritten.
#![forbid(unsafe_code)]

use ring::aead::{AES_256_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::digest;
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trunkline_machine::mutant;
use zeroize::Zeroize;

/// Label of the TLS exporter.
pub(crate) const LABEL: &[u8] = b"EXPORTER-trunkline";
/// Size of a secret, and of a key of either AEAD, in bytes.
const SECRET: usize = 32;
/// Size of the nonce of either AEAD, in bytes.
const NONCE: usize = 12;

/// Secret bytes, overwritten on drop.
pub(super) struct Secret(Box<[u8; SECRET]>);

impl Secret {
    /// Returns the bytes, for a sealed frame or ring.
    pub(super) fn bytes(&self) -> &[u8; SECRET] {
        &self.0
    }

    fn zero() -> Self {
        Self(Box::new([0; SECRET]))
    }

    /// Derives another secret. The parts of `info` are concatenated.
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

/// AEAD of a session, as selected by its TLS suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aead {
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Aead {
    pub(crate) fn key(self, key: &[u8; SECRET]) -> LessSafeKey {
        let algorithm = match self {
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, key).expect("both have keys of this size"))
    }
}

/// Numbers of the pollers of a session's two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pollers {
    pub(crate) own: u8,
    pub(crate) peers: u8,
    /// True if this node is the TLS client.
    pub(crate) is_client: bool,
}

/// Output of the TLS exporter, from which all keys of the exchange can be derived.
#[derive(Debug)]
pub(crate) struct Exported(Secret);

impl Exported {
    /// Creates the value with the exporter's output, which `export` writes in place.
    ///
    /// # Errors
    /// Returns the error of `export`.
    pub(crate) fn new<E>(export: impl FnOnce(&mut [u8; SECRET]) -> Result<(), E>) -> Result<Self, E> {
        let mut secret = Secret::zero();
        export(&mut secret.0)?;
        Ok(Self(secret))
    }

    pub(crate) fn done(&self) -> [u8; SECRET] {
        let mut done = [0; SECRET];
        self.0.expand(&[b"trunkline done\0"], &mut done);
        done
    }

    /// Derives the entry *previous* of the next exchange. The entry is not a secret.
    pub(crate) fn previous(&self) -> [u8; SECRET] {
        let mut previous = [0; SECRET];
        self.0.expand(&[b"trunkline renewal\0"], &mut previous);
        previous
    }

    /// Derives the secrets of phase 0. For each poller of this node, they are the secrets of its lanes, by the peer's
    /// poller.
    pub(crate) fn lanes(&self, aead: Aead, pollers: Pollers) -> Vec<Vec<LaneSecrets>> {
        let lane = |to_client: bool, sender: u8, receiver: u8| LaneSecret {
            secret: self.0.derive(&[b"trunkline lane\0", &[u8::from(to_client), sender, receiver]]),
            aead,
        };
        let Pollers { own, peers, is_client } = pollers;
        let both =
            |own, peer| LaneSecrets { seals: lane(!is_client, own, peer), opens: lane(is_client, peer, own) };
        (0..own).map(|own| (0..peers).map(|peer| both(own, peer)).collect()).collect()
    }
}

/// Secrets of the two lanes between a local poller and a poller of the peer.
#[derive(Debug)]
pub(crate) struct LaneSecrets {
    /// Secret of the frames to the peer.
    pub(crate) seals: LaneSecret,
    /// Secret of the frames from the peer.
    pub(crate) opens: LaneSecret,
}

/// Secrets of a poller's lanes after a renewal. The poller takes each one when its lane switches. A command would
/// arrive too late, because the peer may switch before the poller takes it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RenewedKeys(Arc<Mutex<Vec<[Option<LaneSecret>; 2]>>>);

impl RenewedKeys {
    /// Stores the secrets of an exchange, and replaces secrets that were not taken.
    pub(crate) fn put(&self, lanes: Vec<LaneSecrets>) {
        *self.lock() =
            lanes.into_iter().map(|LaneSecrets { seals, opens }| [Some(seals), Some(opens)]).collect();
    }

    /// Takes the secret for frames to a poller of the peer.
    pub(crate) fn take_seals(&self, peer: usize) -> Option<LaneSecret> {
        self.lock().get_mut(peer)?[0].take()
    }

    /// Takes the secret for frames from a poller of the peer.
    pub(crate) fn take_opens(&self, peer: usize) -> Option<LaneSecret> {
        self.lock().get_mut(peer)?[1].take()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<[Option<LaneSecret>; 2]>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keys of one poller for a session.
#[derive(Debug)]
pub(crate) struct PollerKeys {
    /// Secrets of the poller's lanes, by the peer's poller.
    pub(crate) lanes: Vec<LaneSecrets>,
    pub(crate) renewed: RenewedKeys,
}

/// Secret of a lane in one phase.
#[derive(Debug)]
pub(crate) struct LaneSecret {
    secret: Secret,
    aead: Aead,
}

impl LaneSecret {
    /// Returns the secret of the next phase.
    pub(crate) fn next(&self) -> Self {
        Self { secret: self.secret.derive(&[b"trunkline next\0"]), aead: self.aead }
    }

    pub(crate) fn aead(&self) -> Aead {
        self.aead
    }

    /// Derives the key of the lane's large message with this number.
    pub(super) fn content_key(&self, number: u64) -> Secret {
        self.secret.derive(&[b"trunkline content\0", &number.to_le_bytes()])
    }

    pub(crate) fn keys(&self) -> LaneKeys {
        let mut iv = [0; NONCE];
        self.secret.expand(&[b"trunkline iv\0"], &mut iv);
        LaneKeys { aead: self.aead.key(&self.key().0), iv }
    }

    fn key(&self) -> Secret {
        self.secret.derive(&[b"trunkline key\0"])
    }
}

/// Key and initialisation vector of a lane in one phase.
pub(crate) struct LaneKeys {
    aead: LessSafeKey,
    iv: [u8; NONCE],
}

impl fmt::Debug for LaneKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneKeys").finish_non_exhaustive()
    }
}

impl LaneKeys {
    /// Returns the key for ring.
    pub(crate) fn aead(&self) -> &LessSafeKey {
        &self.aead
    }

    /// Returns the nonce of a frame. `count` is the number of frames before it in the lane, in all phases.
    pub(crate) fn nonce(&self, count: u64) -> [u8; NONCE] {
        let mut nonce = self.iv;
        let count = if mutant!(seal_counter_restarts) { count & 0xff } else { count };
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

    /// The values in `docs/book/src/why/security.md` are the output of this Python 3 program:
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
    fn keys_match_document() {
        let examples = key_examples().into_iter().collect::<BTreeMap<_, _>>();
        let value = |name: &str| &examples.get(name).unwrap_or_else(|| panic!("no {name}"))[..];
        assert_eq!(LABEL, value("label of the exporter"));
        let bindings = [value("list of the TLS client"), value("list of the TLS server")];
        let certificates = [value("certificate of the TLS client"), value("certificate of the TLS server")];
        assert_eq!(context(bindings, certificates), value("context"));

        let export = |out: &mut [u8; SECRET]| value("exported").try_into().map(|exported| *out = exported);
        let exported = Exported::new(export).unwrap();
        assert_eq!(exported.done()[..], *value("DONE"));
        let pollers = Pollers { own: 3, peers: 6, is_client: false };
        let pollers = exported.lanes(Aead::Aes256Gcm, pollers);
        assert_eq!(exported.previous()[..], *value("previous"));
        let first = &pollers[2][5].seals;
        let check = |secret: &LaneSecret, phase: &str| {
            let keys = secret.keys();
            assert_eq!(secret.secret.0[..], *value(&format!("lane from 2 to 5{phase}")));
            assert_eq!(secret.key().0[..], *value(&format!("key{phase}")));
            assert_eq!(keys.iv[..], *value(&format!("iv{phase}")));
            assert_eq!(keys.nonce(259)[..], *value(&format!("nonce of frame 259{phase}")));
        };
        check(first, "");
        check(&first.next(), ", next phase");
    }

    #[test]
    fn both_nodes_have_keys_of_each_lane_and_lanes_differ() {
        let session = |own, peers, is_client| {
            let exported = Exported::new(|_| Ok::<_, ()>(())).unwrap();
            exported.lanes(Aead::ChaCha20Poly1305, Pollers { own, peers, is_client })
        };
        let (client, server) = (session(2, 3, true), session(3, 2, false));
        let key = |secret: &LaneSecret| *secret.key().0;
        let mut keys = Vec::new();
        for (own, lanes) in client.iter().enumerate() {
            for (peer, LaneSecrets { seals, opens }) in lanes.iter().enumerate() {
                let theirs = &server[peer][own];
                assert_eq!((key(seals), key(opens)), (key(&theirs.opens), key(&theirs.seals)));
                keys.extend([key(seals), key(opens)]);
            }
        }
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 12);
        assert_eq!(format!("{:?}", client[0][0].seals.secret), "Secret", "a log shows none");
    }

    #[test]
    fn failed_export_yields_no_keys() {
        assert_eq!(
            Exported::new(|_| Err::<(), _>("during the handshake")).unwrap_err(),
            "during the handshake"
        );
    }
}
