#!/usr/bin/env bash
# Garbage at the UDP port of running exchanges between two processes at one address: random bytes, modified packets with the
# old ICRC, and modified packets with a corrected ICRC. A million of each kind, spread over 20 s.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

packets=${GARBAGE_PACKETS:-1000000}
seconds=${GARBAGE_SECONDS:-20}

if ! build_rigs; then
    fail garbage-build "the example does not build"
    exit 1
fi
# Garbage reaches the exchanges only over UDP. One side of each captures its packets, which also keeps them on UDP.
export TRUNKLINE_LINK=udp TRUNKLINE_RUNTIME_DIR="$scratch/runtime"
mkdir -m 700 "$TRUNKLINE_RUNTIME_DIR"

# Capture into memory if possible: a busy disk would delay the side that writes.
TMPDIR=$scratch
if in_memory=$(mktemp -d -p /dev/shm 2>/dev/null); then
    trap 'rm -rf "$scratch" "$in_memory"' EXIT
    TMPDIR=$in_memory
fi
export TMPDIR

# In separate namespaces any user may send from the peer's port, and no other program receives the garbage.
inside=()
if unshare --user --map-root-user --net true 2>/dev/null && command -v ip >/dev/null; then
    inside=(unshare --user --map-root-user --net bash -c 'ip link set lo up && exec "$@"' garbage)
fi
program="$programs/examples/attacks"
for flood in random stale right; do
    "${inside[@]}" timeout 280 "$program" run "garbage-$flood" --packets "$packets" --seconds "$seconds"
    verdict "garbage-$flood" $? "see the claims above"
done
exit "$check_status"
