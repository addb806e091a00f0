//! The two ends of one wire, as they are put on either side of a kernel's, here both on the software device.

use crate::common;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use trunkline_conformance::WireOrder;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_verbs::Device;

/// What an end says, and word of each line.
struct Lines {
    text: Vec<u8>,
    said: Sender<()>,
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Nobody listens after the first line.
        let _ = self.said.send(());
        Ok(())
    }
}

/// Starts an end; its verdict and what it said come from the thread.
fn start(
    options: &SoftOptions,
    role: &str,
    rest: &str,
) -> (std::thread::JoinHandle<(bool, String)>, Receiver<()>) {
    let own = options.addresses[0];
    let words: Vec<String> = format!("{role} {own} {rest}").split_whitespace().map(str::to_owned).collect();
    let order = WireOrder::parse(&words).unwrap_or_else(|| panic!("{words:?} is no order"));
    let device: Arc<dyn Device> = SoftDevice::open(options.clone()).unwrap();
    let (said, hears) = channel();
    let end = std::thread::spawn(move || {
        let mut lines = Lines { text: Vec::new(), said };
        let well = order.run(&device, &mut lines);
        (well, String::from_utf8(lines.text).unwrap())
    });
    (end, hears)
}

/// Both ends, to the end; all has to be well, and a check of the name to have passed.
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
fn client_and_server_agree_on_everything() {
    converse(["client", "server"], "", "pass wrong-key\n");
}

#[test]
fn they_do_with_shared_receive_queues() {
    converse(["client", "server"], "srq", "pass connections-at-once\n");
}

#[test]
fn our_ends_of_the_programs_of_librdmacm_fit_each_other() {
    converse(["rdma-client", "rdma-server"], "", "0 of them wrong");
    converse(["rping-client", "rping-server"], "", "0 of them wrong");
}

#[test]
fn what_means_nothing_is_refused() {
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
