//! The measured service, and a trait that its local and its sendable client implement.

use trunkline::{Bytes, Status};

/// Methods with different uses of the payload.
#[trunkline::service(name = "trunkline.bench.Echo", version = 2)]
pub(crate) trait Echo {
    /// Returns `payload`.
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status>;

    /// Returns the length of the payload as 8 bytes.
    async fn absorb(&self, payload: Bytes) -> Result<Bytes, Status>;

    /// Returns a digest of the payload as 8 bytes.
    async fn digest(&self, payload: Bytes) -> Result<Bytes, Status>;

    /// Accepts the payload. The call ends when the payload is in the server's memory.
    #[oneway]
    async fn post(&self, payload: Bytes);
}

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

/// Computes FNV-1a over the 8-byte words of the payload, with zeros appended to the last word, and over its length.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Echo,
    Absorb,
    Digest,
    Post,
}

/// Client whose calls can be made on a poller or on another thread.
pub(crate) trait Calls {
    /// Makes a call. The reply of [`Echo::post`] is empty.
    async fn call(&self, request: Request, payload: Bytes) -> Result<Bytes, Status>;
}

macro_rules! calls {
    ($($client:ty),*) => {$(
        impl Calls for $client {
            async fn call(&self, request: Request, payload: Bytes) -> Result<Bytes, Status> {
                match request {
                    Request::Echo => self.echo(payload).await,
                    Request::Absorb => self.absorb(payload).await,
                    Request::Digest => self.digest(payload).await,
                    Request::Post => self.post(payload).await.map(|()| Bytes::new()),
                }
            }
        }
    )*};
}
calls!(EchoClient, EchoLocal);
