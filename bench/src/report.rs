//! The results of a run as JSON.

use crate::cli::Settings;
use crate::html;
use crate::machine::{Machine, Stamp};
use crate::pin::Cores;
use crate::point::{Measure, Results};
use crate::saved::Saved;
use crate::whole_file;
use serde::Serialize;
use std::path::Path;

/// Contents of the file. One point's keys are at the top level; several points are listed.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    command: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    stamp: Stamp,
    settings: Described,
    machine: Machine,
    /// Cores that other programs used during the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    others_cores: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    point: Option<Results>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    points: Vec<Results>,
}

/// The settings that results depend on.
#[derive(Debug, Serialize)]
struct Described {
    link: &'static str,
    /// Reason for which `auto` did not choose shared memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    link_why: Option<&'static str>,
    client: &'static str,
    seconds: f64,
    repetitions: u32,
    one_way: bool,
    verify: bool,
    buffer: &'static str,
    pollers: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arrivals_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<[usize; 2]>,
}

impl Report {
    /// Creates a report of these results, with the machine, the cores and the load of other programs. `error` is the reason for
    /// which the run ended early.
    pub(crate) fn new(
        measure: Measure,
        settings: &Settings,
        (machine, cores, others_cores): (Machine, Option<Cores>, Option<f64>),
        mut points: Vec<Results>,
        error: Option<String>,
    ) -> Self {
        let point = if points.len() == 1 { points.pop() } else { None };
        let settings = Described {
            link: settings.link.name(),
            link_why: settings.link_why,
            client: settings.client.name(),
            seconds: settings.seconds,
            repetitions: settings.repetitions,
            one_way: settings.one_way,
            verify: settings.verify,
            buffer: settings.buffer.name(),
            pollers: settings.nodes.pollers,
            pause_ms: settings.pause,
            arrivals_per_s: settings.arrivals,
            cores: cores.map(|Cores { client, server }| [client, server]),
        };
        Self {
            command: measure.name(),
            error,
            stamp: Stamp::now(),
            settings,
            machine,
            others_cores,
            point,
            points,
        }
    }

    /// Writes the files that the settings name. An existing file is replaced only when the new one is complete.
    ///
    /// # Errors
    /// Fails with the reason if a file cannot be written. The other file is still written.
    pub(crate) fn save(&self, settings: &Settings) -> Result<(), String> {
        let json = settings.json.as_ref().map_or(Ok(()), |path| whole_file::write_json(path, self));
        let html = settings.html.as_ref().map_or(Ok(()), |path| self.write_page(path));
        match (json, html) {
            (Err(one), Err(other)) => Err(format!("{one}; {other}")),
            (json, html) => json.and(html),
        }
    }

    /// Writes a page with the contents of the JSON file.
    fn write_page(&self, path: &Path) -> Result<(), String> {
        let value = serde_json::to_value(self).map_err(|error| error.to_string())?;
        html::write(&[Saved::parse("this run", value)?], path)
    }
}
