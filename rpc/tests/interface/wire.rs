//! A Python decoder that was written only from `docs/book/src/why/wire.md`. It reads the capture of a session, and its
//! counts must match the counts of the nodes.

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::path::Path;
    use std::pin::pin;
    use std::process::Command;
    use std::task::{Context, Waker};
    use std::time::Duration;
    use trunkline::{
        Bytes, CallOptions, Connect, Connections, Metadata, Node, Status, Stream, Streaming, block_on, stream,
    };
    use trunkline_softrdma::device::SoftOptions;
    use trunkline_testkit::{Folder, fresh_address, pattern, wait_until, wire_examples};
    use trunkline_transport::{NodeOptions, NodeReport};

    const DECODER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interface/decode.py");
    const UNARY: u64 = 40;
    const ONE_WAY: u64 = 30;
    const LARGE: u64 = 3;
    const ITEMS: u64 = 40;

    #[trunkline::service]
    trait Store {
        async fn put(&self, key: String, value: Bytes) -> Result<u64, Status>;
        async fn size(&self, key: String) -> Result<u8, Status>;
        #[oneway]
        async fn note(&self, text: String);
        async fn tag(&self, cx: &trunkline::Context, body: Bytes) -> Bytes;
        async fn echo(
            &self,
            items: Streaming<Bytes>,
        ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;
    }

    struct Nothing;

    impl Store for Nothing {
        async fn put(&self, _: String, value: Bytes) -> Result<u64, Status> {
            Ok(value.len() as u64)
        }
        async fn size(&self, key: String) -> Result<u8, Status> {
            Ok(u8::try_from(key.len()).unwrap())
        }
        async fn note(&self, _: String) {}
        async fn tag(&self, cx: &trunkline::Context, body: Bytes) -> Bytes {
            cx.set_initial_metadata(cx.metadata().clone());
            cx.set_trailing_metadata(metadata("end", "end"));
            body
        }

        async fn echo(
            &self,
            items: Streaming<Bytes>,
        ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
            Ok(items)
        }
    }

    fn metadata(key: &str, value: &str) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert(key, value).unwrap();
        metadata
    }

    /// Output of the decoder.
    #[derive(Debug, Deserialize)]
    struct Counts {
        sent: BTreeMap<String, u64>,
        received: BTreeMap<String, u64>,
        sent_announcements: u64,
        received_announcements: u64,
        request_sizes: Vec<(u64, u64)>,
        reply_sizes: Vec<(u64, u64)>,
        times_left_us: Vec<u64>,
        metadata: Vec<(String, String, String)>,
        wrong: Vec<String>,
    }

    /// Returns the numbers of messages that a node has sent and received, according to its report.
    fn counted(report: &NodeReport) -> (u64, u64) {
        let lanes = || report.traffic.iter();
        (lanes().map(|lane| lane.sent).sum(), lanes().map(|lane| lane.received).sum())
    }

    fn decode(capture: &Path, node: &str) -> Counts {
        let output =
            Command::new("python3").arg(DECODER).arg(capture).arg(node).output().expect("python3 runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let counts = serde_json::from_str::<Counts>(&text);
        let counts = counts.unwrap_or_else(|error| panic!("{error}: {text} {output:?}"));
        assert!(output.status.success() && counts.wrong.is_empty(), "{counts:?}");
        counts
    }

    /// Returns true if the decoder can run.
    fn has_python() -> bool {
        let has =
            Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
        if !has {
            println!("skipped: there is no python3");
        }
        has
    }

    /// Starts a node with one poller and a capture of its packets.
    fn captured(capture: &Path, listen: SocketAddr) -> Node {
        let device = SoftOptions { capture: Some(capture.into()), ..SoftOptions::from_env().unwrap() };
        Node::builder().transport(NodeOptions::new().listen(listen).device(device)).start().unwrap()
    }

    /// Returns the kinds of the messages in a frame, one per line, or the error of the decoder.
    fn kinds(frame: &[u8]) -> Result<String, String> {
        const PROGRAM: &str = "import decode, sys
for message in decode.unbundled(bytes.fromhex(sys.argv[1])): print(decode.decode(message)[0])";
        let hex = frame.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let mut python = Command::new("python3");
        python.args(["-B", "-c", PROGRAM, &hex]).current_dir(Path::new(DECODER).parent().unwrap());
        let output = python.output().expect("python3 runs");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    #[test]
    fn document_decoder_reads_examples() {
        if !has_python() {
            return;
        }
        let examples = wire_examples();
        for (name, frame) in &examples {
            let kinds = kinds(frame).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(!kinds.is_empty() && !kinds.contains("unknown"), "{name}: {kinds}");
        }
        let (_, failure) =
            examples.iter().find(|(_, frame)| frame[0] == 5).expect("an example of a handshake");
        // The fields are flags, level, part, offset and total.
        for (at, value) in [(1, 0), (12, 1), (12, 2), (13, 0xff), (14, 1), (16, 3)] {
            let mut bad = failure.clone();
            bad[at] = value;
            assert!(kinds(&bad).unwrap_err().contains("ValueError"), "{value} at {at}");
        }
    }

    /// The sizes are those in the table of `docs/book/src/why/wire.md`: bytes of the frame, and bytes of its packet from
    /// BTH to ICRC.
    #[test]
    fn call_sizes_match_document() {
        if !has_python() {
            return;
        }
        let folder = Folder::new().unwrap();
        let (capture, listen) = (folder.join("sizes.pcap"), fresh_address());
        let server = Node::builder().listen(fresh_address()).serve(StoreServer::new(Nothing));
        let server = server.connections(Connections::Xrc).start().unwrap();
        let client = captured(&capture, listen);
        let store = StoreClient::connect(&client, server.local_address()).unwrap();
        for _ in 0..3 {
            assert_eq!(block_on(store.size("k".repeat(64))), Ok(64));
        }
        client.shutdown();
        let counts = decode(&capture, &listen.ip().to_string());
        let ([first, later], [of_first, of_later]) = ([(146, 168), (98, 120)], [(45, 68), (25, 48)]);
        assert_eq!(counts.request_sizes, [first, later, later]);
        assert_eq!(counts.reply_sizes, [of_first, of_later, of_later]);
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/why/wire.md");
        let document = std::fs::read_to_string(document).unwrap();
        for (name, request, reply) in [("first", first, of_first), ("later", later, of_later)] {
            let sum = (request.0 + reply.0, request.1 + reply.1);
            let cells = [request, reply, sum].map(|(frame, packet)| format!("{frame} in {packet}"));
            let row = format!("| {name} | {} |", cells.join(" | "));
            assert!(document.contains(&row), "{row}");
        }
    }

    #[test]
    fn metadata_in_capture_matches_calls() {
        if !has_python() {
            return;
        }
        let folder = Folder::new().unwrap();
        let (capture, listen) = (folder.join("metadata.pcap"), fresh_address());
        let server =
            Node::builder().listen(fresh_address()).serve(StoreServer::new(Nothing)).start().unwrap();
        let client = captured(&capture, listen);
        let store = StoreClient::connect(&client, server.local_address()).unwrap();
        let (mut expected, long) = (Vec::new(), "v".repeat(8000));
        for (value, body) in [("short", 0), (&*long, 4), ("large", 100_000)] {
            let (options, body) = (CallOptions::new().metadata(metadata("key", value)), vec![0; body]);
            assert_eq!(block_on(store.with(&options).tag(body.clone().into())), Ok(Bytes::from(body)));
            let entries = [("sent", "key", value), ("received", "key", value), ("received", "end", "end")];
            expected
                .extend(entries.map(|(way, key, value)| (way.to_owned(), key.to_owned(), value.to_owned())));
        }
        client.shutdown();
        let counts = decode(&capture, &listen.ip().to_string());
        // Metadata of a message that is fetched by READ may be outside the frame.
        assert!(counts.metadata.starts_with(&expected[..6]), "{:?}", counts.metadata);
        assert_eq!((counts.sent_announcements, counts.received_announcements), (1, 1));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "nodes in real time, of which some has to pass")]
    fn time_left_excludes_wait_before_sending() {
        const LIMIT: Duration = Duration::from_secs(60);
        const WAITS: Duration = Duration::from_secs(1);
        if !has_python() {
            return;
        }
        let folder = Folder::new().unwrap();
        let (capture, listen, later) = (folder.join("late.pcap"), fresh_address(), fresh_address());
        let client = captured(&capture, listen);
        let store = StoreClient::connect(&client, later).unwrap();
        let options = CallOptions::new().timeout(LIMIT).connect(Connect::Wait);
        let store = store.with(&options);
        let mut waiting = pin!(store.size("key".to_owned()));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        std::thread::sleep(WAITS);
        let _server = Node::builder().listen(later).serve(StoreServer::new(Nothing)).start().unwrap();
        assert_eq!(block_on(waiting), Ok(3));
        client.shutdown();
        let left = decode(&capture, &listen.ip().to_string()).times_left_us;
        let [left] = left[..] else { panic!("{left:?} of one request") };
        let most = (LIMIT - WAITS).as_micros();
        assert!(
            u128::from(left) <= most && left > 1_000_000,
            "{left} us are left of {LIMIT:?} after {WAITS:?}"
        );
    }

    #[test]
    fn document_decoder_matches_node_counters() {
        if !has_python() {
            return;
        }
        let folder = Folder::new().unwrap();
        let capture = folder.join("session.pcap");
        let device = SoftOptions { capture: Some(capture.clone()), ..SoftOptions::from_env().unwrap() };
        let listen = fresh_address();
        let server = Node::builder().listen(fresh_address()).pollers(2).serve(StoreServer::new(Nothing));
        let server = server.start().unwrap();
        let options = NodeOptions::new().listen(listen).device(device);
        let client = Node::builder().transport(options).pollers(2).start().unwrap();
        let store = StoreClient::connect(&client, server.local_address()).unwrap();
        for _ in 0..ONE_WAY {
            block_on(store.note("a line".to_owned())).unwrap();
        }
        for number in 0..UNARY + LARGE {
            let length = if number < UNARY { 64 } else { 200_000 };
            let put = store.put("key".to_owned(), pattern(length, 1).into());
            assert_eq!(block_on(put).unwrap(), length as u64);
        }
        let (sender, items) = stream::channel(1);
        let mut echoed = block_on(store.echo(items)).unwrap();
        for number in 0..ITEMS {
            let item = Bytes::from(pattern(if number == 3 { 200_000 } else { 600 }, 2));
            block_on(sender.send(item.clone())).unwrap();
            assert_eq!(block_on(echoed.message()).unwrap(), Some(item));
        }
        sender.finish();
        assert_eq!(block_on(echoed.message()).unwrap(), None);
        let report = wait_until("all messages are counted", Duration::from_secs(60), || {
            let report = client.report();
            let ((sent, received), there) = (counted(&report), counted(&server.report()));
            // In addition to the items and their windows, count OPEN and END, ACCEPT and END, and the reply.
            let is_all = sent >= UNARY + LARGE + ONE_WAY + ITEMS + 2 && received > UNARY + LARGE + ITEMS + 3;
            (is_all && there == (received, sent)).then_some(report)
        });
        client.shutdown();
        server.shutdown();
        let counts = decode(&capture, &listen.ip().to_string());
        let kind = |counts: &BTreeMap<String, u64>, kind| counts.get(kind).copied().unwrap_or(0);
        assert_eq!(kind(&counts.sent, "request"), UNARY + LARGE, "{counts:?}");
        assert_eq!(kind(&counts.sent, "one-way"), ONE_WAY, "{counts:?}");
        assert_eq!(kind(&counts.received, "reply"), UNARY + LARGE + 1, "{counts:?}");
        assert_eq!((counts.sent_announcements, counts.received_announcements), (LARGE + 1, 1), "{counts:?}");
        for (way, once) in [(&counts.sent, "open"), (&counts.received, "accept")] {
            assert_eq!([kind(way, once), kind(way, "data"), kind(way, "end")], [1, ITEMS, 1], "{counts:?}");
            assert!(kind(way, "window") >= 1, "{counts:?}");
        }
        assert!((1..=LARGE + 1).contains(&kind(&counts.received, "fin")), "{counts:?}");
        // Each of two pollers opens a lane to each of two other pollers.
        assert_eq!(
            [kind(&counts.sent, "settings"), kind(&counts.received, "settings")],
            [4, 4],
            "{counts:?}"
        );
        let messages = |counts: &BTreeMap<String, u64>| {
            let calls = ["request", "one-way", "reply", "number", "cancel"];
            let streams = ["open", "data", "accept", "window", "end", "reset"];
            calls.into_iter().chain(streams).map(|name| kind(counts, name)).sum::<u64>()
        };
        assert_eq!((messages(&counts.sent), messages(&counts.received)), counted(&report), "{counts:?}");
    }
}
