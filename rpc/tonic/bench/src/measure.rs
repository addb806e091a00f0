//! The measurements, each over one connection.

use crate::recorder::{Recorder, Sample};
use crate::service::Message;
use crate::stopwatch::{Stopwatch, nanoseconds};
use crate::transport::{Client, Connection, Failure};
use bytes::Bytes;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::spawn_local;

/// A measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// Unary calls with as many bytes each way.
    Unary { size: usize, outstanding: usize },
    /// Items of a stream of the server.
    Feed { size: usize },
}

impl Point {
    pub(crate) const ALL: [Self; 4] = [
        Self::Unary { size: 64, outstanding: 1 },
        Self::Unary { size: 64, outstanding: 32 },
        Self::Unary { size: 1 << 20, outstanding: 1 },
        Self::Feed { size: 64 },
    ];

    pub(crate) fn title(self) -> String {
        match self {
            Self::Unary { size, outstanding } => {
                let size = if size == 1 << 20 { "1 MiB".to_owned() } else { format!("{size} B") };
                format!("unary, {size} each way, {outstanding} outstanding")
            }
            Self::Feed { size } => format!("server stream, items of {size} B"),
        }
    }

    /// True if the table has the time of a call, as it has not for items of a stream.
    pub(crate) fn has_times(self) -> bool {
        matches!(self, Self::Unary { .. })
    }

    /// Measures over a connection, after a warm-up of a quarter of the time.
    #[expect(clippy::cast_precision_loss, reason = "counts and times stay far below 2^52")]
    pub(crate) async fn measure(self, connection: &Connection, time: Duration) -> Result<Sample, Failure> {
        let recorder = Rc::new(RefCell::new(Recorder::new(nanoseconds(time))));
        let watch = Stopwatch::start();
        match self {
            Self::Unary { size, outstanding } => {
                let payload = Bytes::from(vec![1; size]);
                let calls = (0..outstanding).map(|_| {
                    let client = connection.client.clone();
                    spawn_local(call_until_over(client, payload.clone(), watch, Rc::clone(&recorder)))
                });
                for task in calls.collect::<Vec<_>>() {
                    task.await?;
                }
            }
            Self::Feed { size } => read_items(connection.client.clone(), size, watch, &recorder).await?,
        }
        let mut sample = recorder.replace(Recorder::new(0)).finish()?;
        if !self.has_times() {
            // Items arrive in batches, so a median over slices would leave the pauses between them out.
            let measured_s = watch.now_ns().saturating_sub(nanoseconds(time / 4)).max(1) as f64 / 1e9;
            sample.per_s = sample.times.len() as f64 / measured_s;
        }
        Ok(sample)
    }
}

async fn call_until_over(
    mut client: Client,
    payload: Bytes,
    watch: Stopwatch,
    recorder: Rc<RefCell<Recorder>>,
) {
    loop {
        let began_ns = watch.now_ns();
        let reply = client.call(Message { payload: payload.clone() }).await;
        let mut recorder = recorder.borrow_mut();
        match reply.map(|reply| reply.into_inner().payload.len()) {
            Ok(bytes) if bytes == payload.len() => {}
            Ok(bytes) => recorder.failed(format!("a reply has {bytes} bytes, not {}", payload.len())),
            Err(status) => recorder.failed(format!("a call failed: {status}")),
        }
        if !recorder.ended(began_ns, watch.now_ns()) {
            return;
        }
    }
}

async fn read_items(
    mut client: Client,
    size: usize,
    watch: Stopwatch,
    recorder: &RefCell<Recorder>,
) -> Result<(), Failure> {
    let mut items = client.feed(Message { payload: Bytes::from(vec![1; size]) }).await?.into_inner();
    let mut before_ns = watch.now_ns();
    loop {
        let item = items.message().await?.ok_or("the stream has ended")?;
        if item.payload.len() != size {
            return Err(format!("an item has {} bytes, not {size}", item.payload.len()).into());
        }
        let now_ns = watch.now_ns();
        if !recorder.borrow_mut().ended(before_ns, now_ns) {
            return Ok(());
        }
        before_ns = now_ns;
    }
}
