//! The service of the node under test.

use crate::codec::{Bincode, Coding};
use crate::server::{Failure, Methods, Request, Service};
use crate::status::Status;
use crate::stream::ItemBuffer;
use crate::wire::name::{MethodName, ServiceName, Streams};
use bytes::Bytes;
use futures_core::Stream;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A service whose methods each have one behaviour.
static SERVICE: ServiceName =
    ServiceName { name: "fake", version: 2, oldest: 2, codec: 0, codec_name: "bincode", hash: 0x5e41 };
/// A method with a reply and without streams.
const METHOD: MethodName = MethodName {
    service: &SERVICE,
    name: "",
    hash: 0,
    one_way: false,
    idempotent: false,
    streams: Streams::Neither,
    shapes: None,
};
/// Methods of the fake service, and one method that the service does not contain.
pub(crate) static METHODS: [MethodName; 12] = [
    MethodName { name: "echo", hash: 1, ..METHOD },
    MethodName { name: "hang", hash: 2, ..METHOD },
    MethodName { name: "decode", hash: 3, ..METHOD },
    MethodName { name: "fail", hash: 4, ..METHOD },
    MethodName { name: "keep", hash: 6, ..METHOD },
    MethodName { name: "hang unheard", hash: 7, one_way: true, ..METHOD },
    MethodName { name: "keep unheard", hash: 8, one_way: true, ..METHOD },
    MethodName { name: "offloaded", hash: 9, ..METHOD },
    MethodName { name: "feed", hash: 10, streams: Streams::FromServer, ..METHOD },
    MethodName { name: "gather", hash: 11, streams: Streams::FromClient, ..METHOD },
    MethodName { name: "talk", hash: 12, streams: Streams::Both, ..METHOD },
    MethodName { name: "missing", hash: 5, ..METHOD },
];
pub(crate) const ECHO: &MethodName = &METHODS[0];
pub(crate) const HANG: &MethodName = &METHODS[1];
/// Streams items. The first byte of the body is the number of items, or 255 for an endless stream. The second byte is the
/// size of each item in hundreds of bytes.
pub(crate) const FEED: &MethodName = &METHODS[8];
/// Takes items and replies with their number. If there is a body, takes only the number of items in its first byte, and then
/// waits.
pub(crate) const GATHER: &MethodName = &METHODS[9];
/// Streams the items that it receives.
pub(crate) const TALK: &MethodName = &METHODS[10];

pub(crate) fn service() -> Service {
    Service::new(&SERVICE, |_, methods| {
        let [echo, hang, decode, fail, keep, hang_unheard, keep_unheard, offloaded, streams @ .., _] =
            &METHODS;
        let [feed, gather, talk] = streams;
        methods.add(echo, |request| async move {
            let replier = request.replier();
            replier.bytes(request.into_body())
        });
        methods.add(hang, |_| std::future::pending());
        methods.add(decode, |request| async move {
            let decoders =
                (Coding::<Bincode, u64>::decoder(), Coding::<Bincode, Vec<Option<String>>>::decoder());
            let value = request.arguments(&["number", "texts"], decoders)?;
            request.replier().value(&Coding::<Bincode, (u64, Vec<Option<String>>)>::of(&value))
        });
        methods.add(fail, |request| async move {
            Err(Status::aborted("it fails").with_details(request.into_body()).into())
        });
        let keeps = |request: Request| async move {
            let decoders = (Coding::<Bincode, Vec<String>>::decoder(),);
            let (_texts,) = request.arguments(&["texts"], decoders)?;
            std::future::pending().await
        };
        methods.add(keep, keeps);
        methods.add(hang_unheard, |_| std::future::pending());
        methods.add(keep_unheard, keeps);
        let pool = methods.pool();
        methods.add(offloaded, move |request| {
            let pool = pool.clone();
            async move {
                let bytes = pool.offload(offloaded, request.context(), async { Bytes::new() }).await;
                let bytes = bytes.map_err(Failure::Node)?;
                request.replier().bytes(bytes)
            }
        });
        add_streams(methods, [feed, gather, talk]);
        Ok(())
    })
}

/// Adds the methods that stream items.
fn add_streams(methods: &mut Methods, [feed, gather, talk]: [&'static MethodName; 3]) {
    let raw = |item: Bytes, buffer: &mut ItemBuffer| buffer.bytes(item);
    methods.add(feed, move |request| async move {
        let (writer, replier, body) = (request.writer(), request.replier(), request.into_body());
        let (left, hundreds) = (body.first().copied().unwrap_or(0), body.get(1).copied().unwrap_or(0));
        writer.send(Repeat { left, item: vec![left; usize::from(hundreds) * 100].into() }, raw).await?;
        replier.end()
    });
    methods.add(gather, |request| async move {
        let (mut items, replier) = (request.raw_items(|bytes| bytes)?, request.replier());
        let most = request.into_body().first().copied();
        let mut count = 0_u64;
        while most.is_none_or(|most| count < u64::from(most)) && items.message().await?.is_some() {
            count += 1;
        }
        if most.is_some() {
            std::future::pending::<()>().await;
        }
        replier.value(&Coding::<Bincode, u64>::of(&count))
    });
    methods.add(talk, move |request| async move {
        let (items, replier) = (request.raw_items(|bytes| bytes)?, request.replier());
        request.writer().send(items, raw).await?;
        replier.end()
    });
}

/// A stream that repeats one item.
struct Repeat {
    left: u8,
    item: Bytes,
}

impl Stream for Repeat {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.left {
            0 => return Poll::Ready(None),
            u8::MAX => {}
            _ => self.left -= 1,
        }
        Poll::Ready(Some(Ok(self.item.clone())))
    }
}
