//! The table of results.

use hdrhistogram::Histogram;
use serde::Serialize;

/// One message size. Times in nanoseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    size_bytes: usize,
    socket_p50_ns: u64,
    socket_p99_ns: u64,
    call_p50_ns: u64,
    call_p99_ns: u64,
    /// The call's median over the socket's.
    ratio_p50: f64,
}

impl Row {
    /// From the two histograms.
    pub(crate) fn new(size_bytes: usize, socket: &Histogram<u64>, calls: &Histogram<u64>) -> Self {
        let (socket_p50_ns, call_p50_ns) = (socket.value_at_quantile(0.5), calls.value_at_quantile(0.5));
        Self {
            size_bytes,
            socket_p50_ns,
            socket_p99_ns: socket.value_at_quantile(0.99),
            call_p50_ns,
            call_p99_ns: calls.value_at_quantile(0.99),
            ratio_p50: call_p50_ns as f64 / socket_p50_ns.max(1) as f64,
        }
    }
}

/// Prints a table.
pub(crate) fn print(rows: &[Row]) {
    let us = |ns: u64| ns as f64 / 1e3;
    println!("{:>9} {:>21} {:>21} {:>9}", "bytes", "socket p50 / p99", "call p50 / p99", "x socket");
    for row in rows {
        println!(
            "{:>9} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>9.2}",
            row.size_bytes,
            us(row.socket_p50_ns),
            us(row.socket_p99_ns),
            us(row.call_p50_ns),
            us(row.call_p99_ns),
            row.ratio_p50
        );
    }
}
