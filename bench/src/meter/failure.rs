//! Failures that end the program, and their exit codes.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The usage is wrong, or something cannot be measured here.
    Unmeasured(String),
    /// All measurements succeeded, but a file cannot be written.
    Unwritten(String),
    /// The server process has died.
    ServerDied(String),
    /// A value became worse between two runs, or a verdict of a strict run failed.
    Worse(String),
    /// Some nodes or calls in a run between hosts failed, and the others were measured.
    Partial(String),
}

impl Failure {
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Unwritten(_) => 1,
            Self::Unmeasured(_) => 2,
            Self::ServerDied(_) => 3,
            Self::Worse(_) => 4,
            Self::Partial(_) => 5,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmeasured(why) | Self::Unwritten(why) | Self::Worse(why) | Self::Partial(why) => {
                f.write_str(why)
            }
            Self::ServerDied(how) => write!(f, "the server process has died: {how}"),
        }
    }
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Unmeasured(why)
    }
}
