//! The measured service, and a trait for its local and its sendable client.

use trunkline::{Bytes, Status};

/// Ways of taking a payload.
#[trunkline::service(name = "trunkline.bench.Echo", version = 2)]
pub(crate) trait Echo {
    /// Returns `payload`.
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status>;

    /// Returns the length of the payload, in 8 bytes.
    async fn absorb(&self, payload: Bytes) -> Result<Bytes, Status>;

    /// Returns a digest of the payload, in 8 bytes.
    async fn digest(&self, payload: Bytes) -> Result<Bytes, Status>;

    /// Accepts the payload. The call ends when the payload is in the server's memory.
    #[oneway]
    async fn post(&self, payload: Bytes);
}

/// The handler.
#[derive(Debug)]
pub(crate) struct Mirror;

impl Echo for Mirror {
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
        Ok(payload)
    }

    async fn absorb(&self, payload: Bytes) -> Result<Bytes, Status> {
        Ok(Bytes::copy_from_slice(&(payload.len() as u64).to_le_bytes()))
    }

    async fn digest(&self, payload: Bytes) -> Result<Bytes, Status> {
        Ok(Bytes::copy_from_slice(&digest(&payload).to_le_bytes()))
    }

    async fn post(&self, _payload: Bytes) {}
}

/// Computes FNV-1a over words of 8 bytes, the last one padded with zeros, and the length.
pub(crate) fn digest(payload: &[u8]) -> u64 {
    let words = payload.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words
        .chain([payload.len() as u64])
        .fold(0xcbf2_9ce4_8422_2325, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3))
}

/// Calls of a client, on a poller or on another thread.
pub(crate) trait Calls {
    /// Calls [`Echo::echo`].
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status>;
    /// Calls [`Echo::absorb`].
    async fn absorb(&self, payload: Bytes) -> Result<Bytes, Status>;
    /// Calls [`Echo::digest`].
    async fn digest(&self, payload: Bytes) -> Result<Bytes, Status>;
    /// Calls [`Echo::post`].
    async fn post(&self, payload: Bytes) -> Result<(), Status>;
}

impl Calls for EchoClient {
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
        Self::echo(self, payload).await
    }

    async fn absorb(&self, payload: Bytes) -> Result<Bytes, Status> {
        Self::absorb(self, payload).await
    }

    async fn digest(&self, payload: Bytes) -> Result<Bytes, Status> {
        Self::digest(self, payload).await
    }

    async fn post(&self, payload: Bytes) -> Result<(), Status> {
        Self::post(self, payload).await
    }
}

impl Calls for EchoLocal {
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
        Self::echo(self, payload).await
    }

    async fn absorb(&self, payload: Bytes) -> Result<Bytes, Status> {
        Self::absorb(self, payload).await
    }

    async fn digest(&self, payload: Bytes) -> Result<Bytes, Status> {
        Self::digest(self, payload).await
    }

    async fn post(&self, payload: Bytes) -> Result<(), Status> {
        Self::post(self, payload).await
    }
}
