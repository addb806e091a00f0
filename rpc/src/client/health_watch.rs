//! The task that watches the health of a service at a server of balanced channels, during one session.
//!
//! The task opens no connections. The server controls the rate of changes and the end of the stream. Changes are therefore
//! read 10 ms apart, and a stream that ends is reopened after a pause that doubles each time.

use super::CallOptions;
use super::local::LocalChannel;
use super::new_call::ChannelCore;
use super::routes::{Following, Watched};
use crate::call::context::PollerContext;
use crate::executor::sleep;
use crate::observe::health::{HealthLocal, ServingStatus};
use crate::status::{Code, Status};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

/// First pause before the stream is reopened. A random time of up to a quarter is added to each pause.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause, without the random time.
const LONGEST: Duration = Duration::from_secs(30);
/// Minimum time between two reads of the status.
const BETWEEN: Duration = Duration::from_millis(10);

/// Watches the health of a service until the session ends, all channels have dropped the watch, or the server refuses the
/// watch.
pub(crate) async fn follow_health(context: PollerContext, watched: Weak<Watched>) {
    let followed = watched.upgrade().and_then(|watched| watched.follow());
    let Some((following, mut over)) = followed else { return };
    let mut streams = pin!(read_streams(&context, &watched, &following));
    poll_fn(|task| {
        // Poll `over` first, so that a replaced task does not overwrite the status set by its successor.
        if Pin::new(&mut over).poll(task).is_ready() {
            return Poll::Ready(());
        }
        streams.as_mut().poll(task)
    })
    .await;
}

async fn read_streams(context: &PollerContext, watched: &Weak<Watched>, following: &Following) {
    let core = ChannelCore::new(Arc::clone(&following.link));
    let client = HealthLocal::from(LocalChannel::new(context, core));
    let set_serving = |is_serving| {
        watched.upgrade().inspect(|watched| watched.set_serving(is_serving));
    };
    let mut pause = PAUSE;
    while following.is_current() {
        let begun = context.clock().now();
        let ended = read(&client, following.service, &set_serving).await;
        set_serving(true);
        let is_final = |status: &Status| {
            matches!(status.code(), Code::Unimplemented | Code::PermissionDenied | Code::Unauthenticated)
        };
        if ended.is_err_and(|status| is_final(&status)) || !following.is_current() {
            return;
        }
        if context.clock().now() > begun + LONGEST {
            pause = PAUSE;
        }
        let part = u32::try_from(following.link.routes().random() % 256).unwrap_or(0);
        sleep(pause + pause * part / 1024).await;
        pause = (2 * pause).min(LONGEST);
    }
}

async fn read(client: &HealthLocal, service: &str, set_serving: &impl Fn(bool)) -> Result<(), Status> {
    let mut statuses = client.with(&CallOptions::beyond_limits()).watch(service.to_owned()).await?;
    while let Some(status) = statuses.message().await? {
        set_serving(status != ServingStatus::NotServing);
        sleep(BETWEEN).await;
    }
    Ok(())
}
