#!/usr/bin/env bash
# The XRC calls of OFED 1.x from C, in three processes on the drop-in library.
# shellcheck source-path=SCRIPTDIR source=common.bash source=programs.bash
. "$(dirname "$0")/common.bash"
. deploy/checks/programs.bash
choose "$@"
time_up=$((SECONDS + 300))

need legacy-xrc cc gcc && need_file legacy-xrc /usr/include/infiniband/verbs.h libibverbs-dev || exit 0
places_possible legacy-xrc || exit 0
enter_places legacy-xrc "$@"
sources=transport/dropin/tests/c
if ! why=$(cc -std=gnu11 -Wall -Wextra -Werror -Itransport/dropin/include -o "$scratch/legacy_xrc" "$sources/legacy_xrc.c" \
    target/dropin/libibverbs.so.1 2>&1); then
    fail legacy-xrc-compile "$(tail -n 3 <<<"$why")"
    exit 1
fi
tar -C "$scratch" -c legacy_xrc | (in_place near tar -x -C /tmp)
(in_place near touch /tmp/domain /tmp/domain-lossy)

# legacy_xrc NAME FILE: runs the program on the XRC domain of that file.
legacy_xrc() {
    if ! single "$1" 60 /tmp/legacy_xrc "$2"; then return; fi
    grep -qx ok "$scratch/run.out"
    record_status "$1-says-ok" $? "it did not print ok"
}

legacy_xrc legacy-xrc /tmp/domain
faults="drop=0.01,seed=21"
legacy_xrc legacy-xrc-lossy /tmp/domain-lossy
table
exit "$check_status"
