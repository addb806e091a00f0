//! The `sealed` subcommand: calls in encrypted sessions compared with equal calls between nodes without identities, over
//! UDP.
//!
//! Each repetition starts new nodes of both kinds, and measures each quantity with one kind after the other. One thread
//! also seals and opens a large payload without a transport. Encryption adds at least this time to a call.

use crate::calls::client::CallerKind;
use crate::calls::nodes::{LinkFlag, Nodes};
use crate::calls::session::Session;
use crate::calls::worker::{Exchange, Plan};
use crate::meter::failure::Failure;
use crate::meter::pin::{Cores, Pin};
use crate::meter::spread::{Spread, digits};
use crate::meter::stopwatch::Stopwatch;
use crate::results::table::Table;
use crate::scenario::drift::steady;
use crate::scenario::{Output, Scenario, Sweep};
use crate::systems::figures::Figures;
use clap::Args;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use serde::Serialize;
use serde_json::json;
use std::hint::black_box;
use std::time::Duration;

/// Size of a large argument, in bytes.
const LARGE: usize = 1 << 20;
/// Size of the pieces in which a payload is sealed, as in the transport.
const PIECE: usize = 64 << 10;
/// Number of large payloads sealed and opened in each repetition.
const ROUNDS: u32 = 200;

/// Settings of the measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct Sealed {
    #[command(flatten)]
    sweep: Sweep,
    #[command(flatten)]
    output: Output,
}

/// Quantity to measure.
struct Point {
    what: &'static str,
    exchange: Exchange,
    size: usize,
    outstanding: usize,
    /// True for calls per second, and false for the time of a call.
    is_rate: bool,
    /// Figures of each repetition, without encryption and with encryption.
    figures: [Vec<f64>; 2],
}

/// Results for one quantity, as medians over the repetitions.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    none: Spread,
    encrypted: Spread,
    #[serde(skip)]
    is_rate: bool,
}

/// Measures and prints the results.
///
/// # Errors
/// Returns an error if the measurement fails or the file cannot be written.
pub(crate) fn measure(wanted: &Sealed) -> Result<(), Failure> {
    let scenario = Scenario::begin("sealed", &wanted.output, None)?;
    let Sweep { seconds, repetitions, pin } = wanted.sweep;
    let (cores, measured) = (Pin::cores(pin)?, Duration::from_secs_f64(seconds));
    let point = |what, exchange, size, outstanding, is_rate| Point {
        what,
        exchange,
        size,
        outstanding,
        is_rate,
        figures: Default::default(),
    };
    let mut points = [
        point("round trip of 64 B, µs", Exchange::Echo, 64, 1, false),
        point("calls/s of 64 B, 32 outstanding", Exchange::Echo, 64, 32, true),
        point("argument of 1 MiB, µs", Exchange::Absorb, LARGE, 1, false),
    ];
    let mut aead = Vec::new();
    scenario.bar.inc_length(u64::from(repetitions) * points.len() as u64);
    let measured = (0..repetitions).try_for_each(|_| {
        let session = |encrypted| {
            let nodes = Nodes { encrypted, ..Nodes::PLAIN };
            Session::start(LinkFlag::Udp, &nodes, CallerKind::Poller, cores)
        };
        let sessions = [session(false)?, session(true)?];
        for point in &mut points {
            scenario.bar.set_message(point.what);
            point.measure(&sessions, cores, measured)?;
            scenario.bar.inc(1);
        }
        aead.push(steady(cores, || Ok(seal_and_open().map_err(|error| error.to_string())?))?.value);
        Ok(())
    });
    let rows: Vec<_> = points.iter().filter_map(Point::row).collect();
    let aead_ns = Spread::of(&aead);
    let results = json!({
        "seconds": seconds,
        "repetitions": repetitions,
        "cores": cores.map(Cores::pair),
        "rows": rows,
        "aead_ns": aead_ns,
    });
    scenario.end(measured, &table(&rows, aead_ns), &results, &format!("{repetitions} repetitions"))
}

impl Point {
    fn measure(
        &mut self,
        sessions: &[Session; 2],
        cores: Option<Cores>,
        measured: Duration,
    ) -> Result<(), Failure> {
        let plan = Plan::closed_loop(self.exchange, self.size, self.outstanding, measured);
        for (session, figures) in sessions.iter().zip(&mut self.figures) {
            let figure = Figures::of(&steady(cores, || session.measure(plan))?.value);
            figures.extend(if self.is_rate { figure.per_s } else { figure.p50_ns });
        }
        Ok(())
    }

    fn row(&self) -> Option<Row> {
        let [none, encrypted] = self.figures.each_ref().map(|figures| Spread::of(figures));
        Some(Row { what: self.what, none: none?, encrypted: encrypted?, is_rate: self.is_rate })
    }
}

/// Returns the time in which one thread seals and opens a large payload, in nanoseconds.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds stay far below 2^52")]
fn seal_and_open() -> Result<f64, Unspecified> {
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; 32])?);
    let nonce = || Nonce::assume_unique_for_key([0; NONCE_LEN]);
    let mut payload = vec![1; LARGE];
    let watch = Stopwatch::start();
    for _ in 0..ROUNDS {
        for piece in payload.chunks_mut(PIECE) {
            let tag = key.seal_in_place_separate_tag(nonce(), Aad::empty(), piece)?;
            key.open_in_place_separate_tag(nonce(), Aad::empty(), tag, piece, 0..)?;
        }
    }
    black_box(&payload);
    Ok(watch.now_ns() as f64 / f64::from(ROUNDS))
}

/// Returns a table of the medians and their ratios, with the time that encryption adds to a large argument.
fn table(rows: &[Row], aead_ns: Option<Spread>) -> String {
    let mut table = Table::new(["<", "none", "encrypted", "ratio"]);
    for Row { what, none, encrypted, is_rate } in rows {
        let unit = if *is_rate { 1.0 } else { 1e3 };
        let figure = |of: &Spread| digits(of.median / unit);
        let ratio = digits(encrypted.median / none.median);
        table.row([(*what).to_owned(), figure(none), figure(encrypted), ratio]);
    }
    let mut text = table.markdown();
    if let (Some(Row { none, encrypted, .. }), Some(aead)) = (rows.last(), aead_ns) {
        let added = encrypted.median - none.median;
        let (times, added, aead) = (digits(added / aead.median), added / 1e3, aead.median / 1e3);
        text += &format!(
            "\nThe 1 MiB takes {} µs longer, {times} times the {} µs in which AES-256-GCM seals and opens it.",
            digits(added),
            digits(aead)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_added_time_are_printed() {
        let spread = |median| Spread { median, min: median, max: median };
        let row = |what, none, encrypted, is_rate| Row {
            what,
            none: spread(none),
            encrypted: spread(encrypted),
            is_rate,
        };
        let rows = [row("calls/s", 300.0, 270.0, true), row("1 MiB", 2e5, 5e5, false)];
        let text = table(&rows, Some(spread(2e5)));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[2..4], ["| calls/s | 300 | 270 | 0.90 |", "| 1 MiB | 200 | 500 | 2.50 |"]);
        assert!(text.ends_with(
            "takes 300 µs longer, 1.50 times the 200 µs in which AES-256-GCM seals and opens it."
        ));
    }

    #[test]
    fn payload_is_sealed_and_opened() {
        assert!(seal_and_open().unwrap() > 0.0);
    }
}
