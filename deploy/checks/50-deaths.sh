#!/usr/bin/env bash
# Processes killed by SIGKILL under load, by UDP and through shared memory: which peers get errors, which continue, and
# after how long.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

if ! build_rigs; then
    fail deaths-build "the example does not build"
    exit 1
fi
export TMPDIR=$scratch TRUNKLINE_RUNTIME_DIR="$scratch/runtime"
mkdir -m 700 "$TRUNKLINE_RUNTIME_DIR"

program="$programs/examples/deaths"
for link in udp auto; do
    export TRUNKLINE_LINK=$link
    name=deaths
    if [[ $link == auto ]]; then name=deaths-memory; fi
    for scenario in receiver sender creator owner holder; do
        timeout 120 "$program" run "$scenario"
        verdict "$name-$scenario" $? "see the claims above"
    done
done
exit "$check_status"
