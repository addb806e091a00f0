//! The measurements, each over one connection.

use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::{Stopwatch, nanoseconds};
use crate::service::Message;
use crate::transport::{Client, Connection, Failure};
use bytes::Bytes;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// Unary calls with `size` bytes in each direction.
    Unary { size: usize, outstanding: usize },
    /// Items of a server stream.
    Feed { size: usize },
    /// Items of a client stream.
    Upload { size: usize },
}

/// State shared by the calls of one measurement.
#[derive(Clone)]
struct SharedRecorder {
    watch: Stopwatch,
    recorder: Arc<Mutex<Recorder>>,
}

impl SharedRecorder {
    fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Point {
    pub(crate) const ALL: [Self; 6] = [
        Self::Unary { size: 64, outstanding: 1 },
        Self::Unary { size: 64, outstanding: 32 },
        Self::Unary { size: 64 * KIB, outstanding: 8 },
        Self::Unary { size: MIB, outstanding: 1 },
        Self::Feed { size: 64 },
        Self::Upload { size: 64 * KIB },
    ];

    pub(crate) fn title(self) -> String {
        let with_unit = |size| match size {
            MIB => "1 MiB".to_owned(),
            KIB.. => format!("{} KiB", size / KIB),
            _ => format!("{size} B"),
        };
        match self {
            Self::Unary { size, outstanding } => {
                format!("unary, {} each way, {outstanding} outstanding", with_unit(size))
            }
            Self::Feed { size } => format!("server stream, items of {}", with_unit(size)),
            Self::Upload { size } => format!("client stream, items of {}", with_unit(size)),
        }
    }

    /// Returns the unit of the rate.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Unary { .. } => "calls/s",
            Self::Feed { .. } => "items/s",
            Self::Upload { .. } => "bytes/s",
        }
    }

    /// Returns true if the table shows call times. Items of streams have none.
    pub(crate) fn has_times(self) -> bool {
        matches!(self, Self::Unary { .. })
    }

    /// Measures over a connection, after a warm-up of a quarter of the time. Call rates are medians over slices, unless
    /// `is_mean` is true.
    #[expect(clippy::cast_precision_loss, reason = "sizes stay far below 2^52")]
    pub(crate) async fn measure(
        self,
        connection: &Connection,
        time: Duration,
        is_mean: bool,
    ) -> Result<Sample, Failure> {
        // Items arrive in batches, so a median over slices would exclude the pauses between batches.
        let recorder = Recorder::new(nanoseconds(time)).mean(is_mean || !self.has_times());
        let shared = SharedRecorder { watch: Stopwatch::start(), recorder: Arc::new(Mutex::new(recorder)) };
        let client = || connection.client.clone();
        match self {
            Self::Unary { size, outstanding } => {
                let payload = Bytes::from(vec![1; size]);
                let calls = (0..outstanding)
                    .map(|_| tokio::spawn(call_until_over(client(), payload.clone(), shared.clone())));
                for task in calls.collect::<Vec<_>>() {
                    task.await?;
                }
            }
            // Items are read in a task, like replies. Otherwise the thread that calls `block_on` would read them.
            Self::Feed { size } => tokio::spawn(read_items(client(), size, shared.clone())).await??,
            Self::Upload { size } => tokio::spawn(write_items(client(), size, shared.clone())).await??,
        }
        let mut sample = std::mem::replace(&mut *shared.recorder(), Recorder::new(0)).finish()?;
        if let Self::Upload { size } = self {
            sample.per_s *= size as f64;
        }
        Ok(sample)
    }
}

async fn call_until_over(mut client: Client, payload: Bytes, shared: SharedRecorder) {
    loop {
        let began_ns = shared.watch.now_ns();
        let reply = client.call(Message { payload: payload.clone() }).await;
        let mut recorder = shared.recorder();
        match reply.map(|reply| reply.into_inner().payload.len()) {
            Ok(bytes) if bytes == payload.len() => {}
            Ok(bytes) => recorder.failed(format!("a reply has {bytes} bytes, not {}", payload.len())),
            Err(status) => recorder.failed(format!("a call failed: {status}")),
        }
        if !recorder.ended(began_ns, shared.watch.now_ns()) {
            return;
        }
    }
}

async fn read_items(mut client: Client, size: usize, shared: SharedRecorder) -> Result<(), Failure> {
    let mut items = client.feed(Message { payload: Bytes::from(vec![1; size]) }).await?.into_inner();
    let mut before_ns = shared.watch.now_ns();
    loop {
        let item = items.message().await?.ok_or("the stream has ended")?;
        if item.payload.len() != size {
            return Err(format!("an item has {} bytes, not {size}", item.payload.len()).into());
        }
        let now_ns = shared.watch.now_ns();
        if !shared.recorder().ended(before_ns, now_ns) {
            return Ok(());
        }
        before_ns = now_ns;
    }
}

/// Sends items until the measurement ends. An item counts when the transport accepts it, which depends on the server's
/// pace.
async fn write_items(mut client: Client, size: usize, shared: SharedRecorder) -> Result<(), Failure> {
    let (payload, sent) = (Bytes::from(vec![1; size]), Arc::new(Mutex::new(0)));
    let (count, mut before_ns) = (Arc::clone(&sent), shared.watch.now_ns());
    let items = std::iter::from_fn(move || {
        let now_ns = shared.watch.now_ns();
        let goes_on = shared.recorder().ended(before_ns, now_ns);
        before_ns = now_ns;
        goes_on.then(|| {
            *count.lock().unwrap_or_else(PoisonError::into_inner) += payload.len() as u64;
            Message { payload: payload.clone() }
        })
    });
    let reply = client.upload(tokio_stream::iter(items)).await?.into_inner().payload;
    let sent = *sent.lock().unwrap_or_else(PoisonError::into_inner);
    if reply[..] == sent.to_le_bytes() { Ok(()) } else { Err("the server has counted other bytes".into()) }
}
