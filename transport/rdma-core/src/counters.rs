//! Hardware counters of a device's first port.
//!
//! This module maps files in sysfs to common counter names. Drivers provide different files, and counters without a file
//! are omitted.

use std::fs;
use std::path::PathBuf;
use trunkline_verbs::Counter;

/// A file below `/sys/class/infiniband/DEVICE/ports/1`, and the counter's name. If several files have the same counter
/// name, the first existing file is read.
const FILES: [(&str, &str); 16] = [
    ("hw_counters/sent_pkts", "packets_sent"),
    ("counters/port_xmit_packets", "packets_sent"),
    ("hw_counters/rcvd_pkts", "packets_received"),
    ("counters/port_rcv_packets", "packets_received"),
    ("hw_counters/send_rnr_err", "rnr_nak_sent"),
    ("hw_counters/out_of_buffer", "rnr_nak_sent"),
    ("hw_counters/rcvd_rnr_err", "rnr_nak_received"),
    ("hw_counters/rnr_nak_retry_err", "rnr_nak_received"),
    ("hw_counters/completer_retry_err", "retransmits"),
    ("hw_counters/local_ack_timeout_err", "retransmits"),
    ("hw_counters/duplicate_request", "duplicates_received"),
    ("hw_counters/out_of_seq_request", "out_of_sequence_received"),
    ("hw_counters/out_of_sequence", "out_of_sequence_received"),
    ("hw_counters/packet_seq_err", "sequence_nak_received"),
    ("hw_counters/rcvd_seq_err", "sequence_nak_received"),
    ("hw_counters/retry_exceeded_err", "retry_exceeded"),
];

/// The counters of one opening of a device.
#[derive(Debug)]
pub(crate) struct Counters {
    folder: PathBuf,
    /// The values when the device was opened. The kernel counts from the device's creation.
    at_open: Vec<Counter>,
}

impl Counters {
    pub(crate) fn new(device: &str) -> Self {
        let folder = PathBuf::from("/sys/class/infiniband").join(device).join("ports/1");
        let mut counters = Self { folder, at_open: Vec::new() };
        counters.at_open = counters.absolute();
        counters
    }

    /// Returns the values since the device was opened.
    pub(crate) fn read(&self) -> Vec<Counter> {
        let mut counters = self.absolute();
        for counter in &mut counters {
            let before = self.at_open.iter().find(|before| before.name == counter.name);
            // A counter that has been reset since then reads 0.
            counter.value = counter.value.saturating_sub(before.map_or(0, |before| before.value));
        }
        counters
    }

    fn absolute(&self) -> Vec<Counter> {
        let mut counters: Vec<Counter> = Vec::new();
        for (file, name) in FILES {
            if counters.iter().any(|counter| counter.name == name) {
                continue;
            }
            let text = fs::read_to_string(self.folder.join(file));
            if let Some(value) = text.ok().and_then(|text| text.trim().parse().ok()) {
                counters.push(Counter { name, value });
            }
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_start_when_device_is_opened() {
        let folder = std::env::temp_dir().join(format!("trunkline-counters-{}", std::process::id()));
        // A killed process with the same process id may have left the folder.
        let _left = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("hw_counters")).unwrap();
        let sent = folder.join("hw_counters/sent_pkts");
        fs::write(&sent, "100\n").unwrap();
        fs::write(folder.join("hw_counters/rcvd_pkts"), "not a number").unwrap();
        let mut counters = Counters { folder: folder.clone(), at_open: Vec::new() };
        counters.at_open = counters.absolute();
        fs::write(&sent, "142\n").unwrap();
        let read = counters.read();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(read, [Counter { name: "packets_sent", value: 42 }]);
    }
}
