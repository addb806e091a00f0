//! Log of the demo on standard error, filtered by `TRUNKLINE_LOG`.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Remedy for an invalid part of `TRUNKLINE_LOG`.
const REMEDY: &str = "give off, error, warn, info, debug or trace, or such a level for a crate, as in \
                      trunkline_transport=debug, or several of them with commas in between";

/// Logs warnings, or the events that `TRUNKLINE_LOG` selects, such as `info` or `trunkline_transport=debug`.
///
/// # Errors
/// Returns a message that contains the invalid part and the remedy.
pub(crate) fn to_stderr() -> Result<(), String> {
    let filter = filter(std::env::var_os("TRUNKLINE_LOG"))?;
    let lines =
        tracing_subscriber::fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(io::stderr);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}

/// Writes a line to standard error. A write error is ignored, because the exit status reports the result. `eprintln!`
/// would panic.
pub(crate) fn line(text: impl Display) {
    let _unwritten = writeln!(io::stderr(), "{text}");
}

/// Parses the filter. The parser of `Targets` treats every word other than a level as the name of a target.
fn filter(value: Option<OsString>) -> Result<Targets, String> {
    let Some(value) = value.filter(|value| !value.is_empty()) else {
        return Ok(Targets::new().with_default(LevelFilter::WARN));
    };
    let text =
        value.into_string().map_err(|value| format!("invalid text {value:?}: expected UTF-8; {REMEDY}"))?;
    text.split(',').map(str::trim).try_fold(Targets::new(), |filter, part| {
        let bad = || format!("invalid part {part:?}; {REMEDY}");
        let level_of = |text: &str| match text {
            // The parser of levels accepts an empty string.
            "" => Err(bad()),
            text => text.parse::<LevelFilter>().map_err(|_| bad()),
        };
        match part.split_once('=') {
            None => Ok(filter.with_default(level_of(part)?)),
            Some(("", _)) => Err(bad()),
            Some((target, level)) => Ok(filter.with_target(target, level_of(level)?)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt as _;
    use tracing::Level;

    #[test]
    fn log_levels_select_logged_events() {
        let read = |text: &str| filter(Some(text.into())).unwrap();
        let unset = filter(None).unwrap();
        assert_eq!(read(""), unset);
        assert!(unset.would_enable("any", &Level::WARN) && !unset.would_enable("any", &Level::INFO));
        assert!(read("DEBUG").would_enable("any", &Level::DEBUG));
        let both = read("error, trunkline_transport=debug");
        assert!(both.would_enable("trunkline_transport::session", &Level::DEBUG));
        assert!(both.would_enable("any", &Level::ERROR) && !both.would_enable("any", &Level::WARN));
    }

    #[test]
    fn invalid_level_is_refused_with_remedy() {
        for text in ["verbose", "bogus=,,", "info,", "trunkline_transport=much", "=info", ","] {
            let error = filter(Some(text.into())).unwrap_err();
            assert!(error.contains("trunkline_transport=debug"), "{text}: {error}");
        }
        assert!(filter(Some(OsString::from_vec(vec![0xff]))).unwrap_err().contains("UTF-8"));
    }
}
