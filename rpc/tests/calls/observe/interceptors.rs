//! Interceptors of clients and servers, for all kinds of calls.

use crate::common::{Events, Reporter, events};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use trunkline::stub::Service;
use trunkline::{
    CallOptions, Channel, ClientCall, ClientInterceptor, Code, Context, InProcessNetwork, Metadata, Node,
    Origin, PollerIndex, Reason, ResponseMetadata, ServerCall, Status, block_on,
};

#[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("refused by the service")]
struct Own;

#[trunkline::service]
trait Seen {
    /// Returns the values of `tag`.
    async fn tags(&self, cx: &Context) -> String;
    async fn time_left(&self, cx: &Context) -> Duration;
    async fn fail(&self) -> Result<(), Status>;
    async fn fail_own(&self) -> Result<(), Own>;
    async fn panic(&self);
    async fn hang(&self);
    #[blocking]
    async fn block(&self, cx: &Context) -> String;
    #[oneway]
    async fn tell(&self, cx: &Context);
}

struct Handler(Reporter<String>);

fn tags(cx: &Context) -> String {
    cx.metadata().get_all("tag").collect::<Vec<_>>().join(" ")
}

impl Seen for Handler {
    async fn tags(&self, cx: &Context) -> String {
        // The future completes in a later poll. The context must be the same there.
        trunkline::yield_now().await;
        assert_eq!(Context::current().map(|current| tags(&current)), Some(tags(cx)));
        tags(cx)
    }

    async fn time_left(&self, cx: &Context) -> Duration {
        cx.time_left().unwrap_or_default()
    }

    async fn fail(&self) -> Result<(), Status> {
        Err(Status::not_found("no"))
    }

    async fn fail_own(&self) -> Result<(), Own> {
        Err(Own)
    }

    async fn panic(&self) {
        panic!("as it should");
    }

    async fn hang(&self) {
        self.0.tell("hangs".to_owned());
        std::future::pending().await
    }

    async fn block(&self, cx: &Context) -> String {
        tags(cx)
    }

    async fn tell(&self, cx: &Context) {
        self.0.tell(tags(cx));
    }
}

struct Rig {
    _server: Node,
    node: Node,
    channel: Channel,
    told: Events<String>,
}

/// Starts a server with interceptors and creates a channel to it.
fn rig(intercept: impl FnOnce(SeenServer) -> SeenServer) -> Rig {
    let (reporter, told) = events();
    let network = InProcessNetwork::new();
    let service: Service = intercept(SeenServer::new(Handler(reporter))).into();
    let server = Node::builder().in_process(&network).serve(service).start().unwrap();
    let node = Node::builder().in_process(&network).start().unwrap();
    let channel = node.channel(server.local_address());
    Rig { _server: server, node, channel, told }
}

/// Appends a value to `tag`.
fn client_tag(tag: &'static str) -> impl ClientInterceptor {
    move |call: &mut ClientCall| Ok(call.metadata_mut().append("tag", tag)?)
}

/// Reports the method of a call, and then its outcome.
fn report_client(to: Reporter<String>) -> impl ClientInterceptor {
    move |call: &mut ClientCall| {
        let (to, method) = (to.clone(), call.method());
        call.on_end(move |outcome| to.tell(format!("{method} {}", name(outcome))));
        Ok(())
    }
}

fn name(outcome: Result<(), &Status>) -> String {
    outcome.map_or_else(|status| format!("{:?}", status.code()), |()| "Ok".to_owned())
}

#[test]
fn interceptors_change_metadata_in_their_order() {
    let rig = rig(|server| {
        server
            .interceptor(|call: &mut ServerCall| {
                assert_eq!(call.metadata().get("tag"), Some("options"));
                assert!(call.context().peer().is_some() && call.service() == "Seen");
                Ok(call.metadata_mut().append("tag", "server-1")?)
            })
            .interceptor(|call: &mut ServerCall| Ok(call.metadata_mut().append("tag", "server-2")?))
    });
    let channel =
        rig.channel.with_interceptor(client_tag("client-1")).with_interceptor(client_tag("client-2"));
    let mut metadata = Metadata::new();
    metadata.insert("tag", "options").unwrap();
    let options = CallOptions::new().metadata(metadata);
    let all = "options client-1 client-2 server-1 server-2";
    let client = SeenClient::new(channel.clone());
    assert_eq!(block_on(client.with(&options).tags()).unwrap(), all);
    assert_eq!(block_on(client.with(&options).block()).unwrap(), all);
    block_on(client.with(&options).tell()).unwrap();
    assert_eq!(rig.told.next(), all);
    let of_poller = options.clone();
    let local = rig.node.run_on(PollerIndex(0), |poller| async move {
        let local = SeenLocal::new(channel.on(&poller).with_interceptor(client_tag("local")));
        local.ordered().with(&of_poller).tags().await
    });
    let all = "options client-1 client-2 local server-1 server-2";
    assert_eq!(block_on(local).unwrap().unwrap(), all);
    // The original channel, from which the others were created, has no interceptor.
    let client = SeenClient::new(rig.channel.clone());
    assert_eq!(block_on(client.with(&options).tags()).unwrap(), "options server-1 server-2");
}

#[test]
fn client_interceptor_sees_and_sets_time_limit() {
    let rig = rig(|server| server);
    let channel = rig.channel.with_interceptor(|call: &mut ClientCall| {
        assert_eq!(call.timeout(), Duration::from_secs(500));
        call.set_timeout(Duration::from_secs(1000));
        Ok(())
    });
    let options = CallOptions::new().timeout(Duration::from_secs(500));
    let left = block_on(SeenClient::new(channel).with(&options).time_left()).unwrap();
    assert!(left > Duration::from_secs(500) && left <= Duration::from_secs(1000), "{left:?}");
}

#[test]
fn refused_calls_have_not_run() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let rig = rig(|server| {
        server
            .interceptor(|call: &mut ServerCall| match call.metadata().get("tag") {
                Some("good") => Ok(()),
                _ => {
                    let mut metadata = Metadata::new();
                    metadata.insert("hint", "log in").unwrap();
                    Err(Status::unauthenticated("no token").with_details("details").with_metadata(metadata))
                }
            })
            .interceptor(move |_: &mut ServerCall| {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
    });
    let bare = SeenClient::new(rig.channel.clone());
    let (reporter, ended) = events();
    let reporting = rig.channel.with_interceptor(report_client(reporter));
    let good = SeenClient::new(reporting.with_interceptor(client_tag("good")));
    let status = block_on(bare.tags()).unwrap_err();
    assert_eq!((status.code(), status.origin()), (Code::Unauthenticated, Origin::Peer));
    assert_eq!((status.may_have_run(), status.reason()), (false, Some(Reason::Unauthorised)));
    assert_eq!((&status.details()[..], status.metadata().get("hint")), (&b"details"[..], Some("log in")));
    assert!(status.message().ends_with("no token"), "{status}");
    assert_eq!(count.load(Ordering::Relaxed), 0, "a later interceptor");
    block_on(bare.tell()).unwrap();
    block_on(good.tell()).unwrap();
    assert_eq!((rig.told.next(), ended.next()), ("good".to_owned(), "tell Ok".to_owned()));
    assert!(rig.told.is_empty(), "the one-way call before was refused");

    let refusing = reporting.with_interceptor(|_: &mut ClientCall| Err(Status::unavailable("not today")));
    let client = SeenClient::new(refusing.clone());
    for status in [block_on(client.tags()).unwrap_err(), block_on(client.tell()).unwrap_err()] {
        assert_eq!((status.code(), status.origin()), (Code::Unavailable, Origin::Local));
        assert!(!status.may_have_run(), "{status}");
        assert!(ended.next().ends_with("Unavailable"));
    }
    let local = rig.node.run_on(PollerIndex(0), move |poller| async move {
        SeenLocal::new(refusing.on(&poller)).tags().await
    });
    let status = block_on(local).unwrap().unwrap_err();
    assert_eq!((status.code(), status.may_have_run()), (Code::Unavailable, false));
    assert_eq!(count.load(Ordering::Relaxed), 1, "only the good call came");
}

#[test]
fn interceptors_of_both_sides_get_outcome() {
    let (of_server, ended) = events();
    let rig = rig(|server| {
        server.interceptor(move |call: &mut ServerCall| {
            let (to, method) = (of_server.clone(), call.method());
            call.on_end(move |outcome| to.tell(format!("{method} {}", name(outcome))));
            Ok(())
        })
    });
    let (reporter, seen) = events();
    let client = SeenClient::new(rig.channel.with_interceptor(report_client(reporter)));
    let both = |expected: &str| assert_eq!((&*seen.next(), &*ended.next()), (expected, expected));
    block_on(client.tags()).unwrap();
    both("tags Ok");
    block_on(client.block()).unwrap();
    both("block Ok");
    block_on(client.tell()).unwrap();
    both("tell Ok");
    assert!(block_on(client.fail()).is_err());
    both("fail NotFound");
    assert!(block_on(client.fail_own()).is_err());
    both("fail_own Unknown");
    assert!(block_on(client.panic()).is_err());
    both("panic Internal");
    assert_eq!(rig.told.next(), "", "tell");
    let call = client.hang();
    assert_eq!(rig.told.next(), "hangs");
    drop(call);
    both("hang Cancelled");
    let short = CallOptions::new().timeout(Duration::from_millis(50));
    assert!(block_on(client.with(&short).hang()).is_err());
    assert_eq!(seen.next(), "hang DeadlineExceeded");
    // The request may not have been read in time.
    if rig.told.try_next().is_some() {
        // The caller's cancellation may arrive before the server detects the deadline.
        assert!(["hang DeadlineExceeded", "hang Cancelled"].contains(&&*ended.next()));
    }
    let received = ResponseMetadata::new();
    let none = CallOptions::new().timeout(Duration::ZERO).response_metadata(&received);
    assert!(block_on(client.with(&none).tags()).is_err());
    assert_eq!(seen.next(), "tags DeadlineExceeded");
    assert!(seen.is_empty(), "each closure runs once");
}

#[test]
fn panic_in_interceptor_ends_only_its_call() {
    let rig = rig(|server| {
        server.interceptor(|call: &mut ServerCall| {
            match call.metadata().get("tag") {
                Some("before") => panic!("as it should"),
                Some("after") => call.on_end(|_| panic!("as it should")),
                _ => {}
            }
            Ok(())
        })
    });
    let plain = SeenClient::new(rig.channel.clone());
    let check = |channel: Channel, may_have_run: bool| {
        let client = SeenClient::new(channel.clone());
        let local = rig.node.run_on(PollerIndex(0), move |poller| async move {
            SeenLocal::new(channel.on(&poller)).tags().await
        });
        for status in [block_on(client.tags()).unwrap_err(), block_on(local).unwrap().unwrap_err()] {
            assert_eq!((status.code(), status.reason()), (Code::Internal, Some(Reason::Panicked)));
            assert!(status.message().ends_with("an interceptor panicked"), "{status}");
            assert_eq!(status.may_have_run(), may_have_run, "{status}");
            assert_eq!(block_on(plain.tags()).unwrap(), "");
        }
    };
    check(rig.channel.with_interceptor(client_tag("before")), false);
    check(rig.channel.with_interceptor(client_tag("after")), true);
    check(rig.channel.with_interceptor(|_: &mut ClientCall| panic!("as it should")), false);
    let after = |call: &mut ClientCall| {
        call.on_end(|_| panic!("as it should"));
        Ok(())
    };
    let channel = rig.channel.with_interceptor(after);
    check(channel.clone(), true);
    // Without a future, the status of the failed interceptor has no receiver.
    drop(SeenClient::new(channel).hang());
    assert_eq!(block_on(plain.tags()).unwrap(), "");
}
