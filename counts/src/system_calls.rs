//! Counts of system calls per side.
//!
//! Valgrind can log every system call. The measured program marks the beginning and the end of each turn in this log by
//! checking whether a certain file exists, which is never the case.

use crate::side::Side;

/// Paths that mark the start and end of counting and of turns.
pub(crate) mod marks {
    /// Start of counting.
    pub(crate) const BEGIN: &str = "/trunkline-counts/begin";
    /// End of counting.
    pub(crate) const END: &str = "/trunkline-counts/end";
    /// Start of a turn of the client.
    pub(crate) const CLIENT: &str = "/trunkline-counts/client";
    /// Start of a turn of the server.
    pub(crate) const SERVER: &str = "/trunkline-counts/server";
    /// End of a turn.
    pub(crate) const NOBODY: &str = "/trunkline-counts/nobody";
}

pub(crate) fn mark(path: &str) {
    // The file does not exist. Only the system call matters.
    let _missing = std::fs::exists(path);
}

/// Counts the system calls in the turns of a side, in a log written with `--trace-syscalls=yes`.
///
/// # Errors
/// Returns an error if a mark is missing from the log.
pub(crate) fn count(log: &str, side: Side) -> Result<u64, String> {
    let own = match side {
        Side::Client => marks::CLIENT,
        Side::Server => marks::SERVER,
    };
    let (mut calls, mut in_turn, mut began, mut ended) = (0, false, false, false);
    for line in log.lines().filter(|line| line.starts_with("SYSCALL[") && line.contains(") sys_")) {
        let mark = line.split_once("(/trunkline-counts/").and_then(|(_, rest)| rest.split_once(')'));
        match mark {
            None => calls += u64::from(began && !ended && in_turn),
            Some((name, _)) => {
                let is = |mark: &str| mark.ends_with(&format!("/{name}"));
                began |= is(marks::BEGIN);
                ended |= is(marks::END);
                in_turn = is(own);
            }
        }
    }
    match began && ended {
        true => Ok(calls),
        false => Err("valgrind's log of system calls has no beginning or no end".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(name: &str) -> String {
        format!(
            "SYSCALL[7,1](332) sys_statx ( 4294967196, 0x1ffe(/trunkline-counts/{name}), 0 )[sync] --> Failure(0x2) \n"
        )
    }

    const SENDS: &str = "SYSCALL[7,1](307) sys_sendmmsg ( 12, 0x1ffe, 1, 16448 ) --> [async] ... \n\
        SYSCALL[7,1](307) ... [async] --> Success(0x1) \n";

    #[test]
    fn system_calls_count_for_active_side() {
        let log = [
            &asks("client"),
            SENDS,
            &asks("nobody"),
            &asks("begin"),
            SENDS,
            &asks("client"),
            SENDS,
            SENDS,
            &asks("nobody"),
            SENDS,
            &asks("server"),
            SENDS,
            &asks("nobody"),
            &asks("end"),
            &asks("client"),
            SENDS,
        ]
        .concat();
        assert_eq!((count(&log, Side::Client), count(&log, Side::Server)), (Ok(2), Ok(1)));
        assert!(count(&asks("begin"), Side::Client).is_err());
    }
}
