#!/usr/bin/env bash
# Garbage at the UDP port of running exchanges, those of two processes at one address: random bytes, real packets changed
# with their ICRC left as it was, real packets changed with their ICRC made right. A million each, spread over 20 s each.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

packets=${GARBAGE_PACKETS:-1000000}
seconds=${GARBAGE_SECONDS:-20}

if ! build_rigs; then
    fail garbage-build "the example does not build"
    exit 1
fi
# The garbage meets the exchanges only by UDP. One side of each captures its packets, so they would stay there anyway.
export TRUNKLINE_LINK=udp TRUNKLINE_RUNTIME_DIR="$scratch/runtime"
mkdir -m 700 "$TRUNKLINE_RUNTIME_DIR"

# The capture is in memory if possible: a busy disk would delay the side that writes it.
TMPDIR=$scratch
if in_memory=$(mktemp -d -p /dev/shm 2>/dev/null); then
    trap 'rm -rf "$scratch" "$in_memory"' EXIT
    TMPDIR=$in_memory
fi
export TMPDIR

# In its own namespaces any user may send from the peer's own port, and no other program receives the garbage.
inside=()
if unshare --user --map-root-user --net true 2>/dev/null && command -v ip >/dev/null; then
    inside=(unshare --user --map-root-user --net bash -c 'ip link set lo up && exec "$@"' garbage)
fi
program="$programs/examples/garbage"
for flood in random stale right; do
    "${inside[@]}" timeout 280 "$program" run "$flood" --packets "$packets" --seconds "$seconds"
    verdict "garbage-$flood" $? "see the claims above"
done
exit "$check_status"
