#!/usr/bin/env bash
# Counts of one call have not grown since counts/record.json: instructions, allocations, system calls (docs/book/src/reference/performance.md).
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

need counts valgrind valgrind || exit 0
if ! why=$(valgrind --quiet true 2>&1); then
    skip counts "valgrind does not run here: $(head -n 1 <<<"$why")"
    exit 0
fi
if ! cargo build --profile dist --locked --quiet --package trunkline-counts; then
    fail counts-build "the program does not build"
    exit 1
fi
export TMPDIR=$scratch
# cargo counts prints the lines of this check itself.
timeout 600 "${CARGO_TARGET_DIR:-target}/dist/trunkline-counts" --check
status=$?
if ((status > 1)); then fail counts "it ended with status $status"; fi
exit $((status > 0 ? 1 : check_status))
