//! The two sides of the interoperability test. The kernel lab runs one side on the kernel's device; here both
//! sides run on the software device.

use crate::common;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use trunkline_conformance::WireOrder;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_verbs::Device;

/// Output of a side. Each line is also sent to a channel.
struct Lines {
    text: Vec<u8>,
    sent: Sender<()>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // The channel does not have a receiver after the first line.
        let _ = self.sent.send(());
        Ok(())
    }
}

/// Starts a side on a thread, which returns the result and the output.
fn start(
    options: &SoftOptions,
    role: &str,
    rest: &str,
) -> (std::thread::JoinHandle<(bool, String)>, Receiver<()>) {
    let own = options.addresses[0];
    let words: Vec<String> = format!("{role} {own} {rest}").split_whitespace().map(str::to_owned).collect();
    let order =
        WireOrder::parse(&words).unwrap_or_else(|| panic!("{words:?} is not a valid list of arguments"));
    let device: Arc<dyn Device> = SoftDevice::open(options.clone()).unwrap();
    let (sent, lines) = channel();
    let end = std::thread::spawn(move || {
        let mut lines = Lines { text: Vec::new(), sent };
        let well = order.run(&device, &mut lines);
        (well, String::from_utf8(lines.text).unwrap())
    });
    (end, lines)
}

/// Runs both sides. All checks have to pass, and the output has to contain the given line.
fn converse(roles: [&str; 2], how: &str, passed: &str) {
    let [near, far] = common::in_process();
    let (server, listening) = start(&far, roles[1], "4477");
    listening.recv().unwrap();
    let (client, _) = start(&near, roles[0], &format!("{} 4477 {how}", far.addresses[0]));
    let (client, server) = (client.join().unwrap(), server.join().unwrap());
    assert!(client.0 && server.0, "client:\n{}\nserver:\n{}", client.1, server.1);
    assert!(client.1.contains(passed), "no {passed:?} in\n{}", client.1);
}

#[test]
fn client_and_server_pass_every_check() {
    converse(["client", "server"], "", "pass wrong-key\n");
}

#[test]
fn client_and_server_pass_every_check_with_shared_receive_queues() {
    converse(["client", "server"], "srq", "pass connections-at-once\n");
}

#[test]
fn both_ends_of_librdmacm_programs_interoperate() {
    converse(["rdma-client", "rdma-server"], "", "0 of them wrong");
    converse(["rping-client", "rping-server"], "", "0 of them wrong");
}

#[test]
fn invalid_arguments_are_refused() {
    for words in [
        "",
        "client",
        "client 10.0.0.1",
        "server 10.0.0.1 70000",
        "server 10.0.0.1 1 srq",
        "client a b 1",
        "xserver 10.0.0.1 1",
    ] {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        assert!(WireOrder::parse(&words).is_none(), "{words:?}");
    }
}
