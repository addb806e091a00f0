#!/usr/bin/env bash
# A million one-way calls of mixed sizes on an ordered client, without and with loss: each starts once and in order.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

if ! build; then
    fail ordered-build "the example does not build"
    exit 1
fi
export TMPDIR=$scratch TRUNKLINE_RUNTIME_DIR="$scratch/runtime"
mkdir -m 700 "$TRUNKLINE_RUNTIME_DIR"

program="$programs/examples/ordered_calls"
timeout 300 "$program" --calls 1000000
verdict ordered-clean $? "see the line above"
timeout 600 "$program" --calls 1000000 --faults drop=0.01,seed=7
verdict ordered-loss $? "see the line above"
exit "$check_status"
