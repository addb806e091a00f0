#!/usr/bin/env bash
# Calls with known texts, with and without identities, and with loss. A capture by tcpdump must contain all texts of the session
# without seals and none of the other one. The tests also look into captures by the device and into shared memory.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

if ! cargo test --workspace --locked --no-run --quiet --test calls; then
    fail sealed-build "the tests do not build"
    exit 1
fi
need sealed-tcpdump tcpdump tcpdump || exit 0
need sealed-tcpdump unshare util-linux || exit 0
need sealed-tcpdump ip iproute2 || exit 0
export TMPDIR=$scratch CARGO_NET_OFFLINE=true

# inside: runs the tests in a network namespace, whose loopback interface has no packets of other programs.
inside() {
    ip link set lo up || return 3
    tcpdump -i lo -s 0 -B 65536 -U -Z root -w "$TMPDIR/lo.pcap" udp port 4791 2>"$TMPDIR/tcpdump.log" &
    local tcpdump=$! status
    until grep -q "listening on" "$TMPDIR/tcpdump.log"; do
        kill -0 "$tcpdump" 2>/dev/null || return 3
        sleep 0.1
    done
    timeout 300 cargo test --workspace --locked --quiet --test calls -- node::sealed
    status=$?
    sleep 1
    kill -INT "$tcpdump" && wait "$tcpdump"
    return "$status"
}
export -f inside

# As root without a user namespace: tcpdump sets groups, which such a namespace may forbid.
namespace=(unshare --net)
if ((EUID != 0)); then namespace+=(--user --map-current-user --keep-caps); fi
"${namespace[@]}" bash -c inside >"$scratch/tests.log" 2>&1
status=$?
if ((status == 3)) || ! "${namespace[@]}" true 2>>"$scratch/tests.log"; then
    skip sealed-tcpdump "no packets can be captured in a network namespace here: $(cat "$scratch/tcpdump.log" "$scratch/tests.log" 2>/dev/null)"
    exit 0
fi
verdict sealed-tests "$status" "$(grep -m 1 -A 3 -e panicked -e error "$scratch/tests.log")"
grep -q "^0 packets dropped by kernel" "$scratch/tcpdump.log"
verdict sealed-tcpdump $? "$(grep dropped "$scratch/tcpdump.log")"

# texts SESSION: prints the places of which a text was captured.
texts() { LC_ALL=C grep -aoE "canary in [a-z -]+ of a $1 session" "$scratch/lo.pcap" | sort -u; }
texts Sealed >"$scratch/sealed"
test ! -s "$scratch/sealed"
verdict sealed-in-no-packet $? "found $(head -n 3 "$scratch/sealed")"
expected=$(grep -c '^    "[a-z -]*",$' rpc/tests/calls/node/sealed.rs)
captured=$(texts Clear | wc -l)
((expected > 20 && captured == expected))
verdict sealed-clear-is-found $? "found $captured of $expected texts of the session without seals"
exit "$check_status"
