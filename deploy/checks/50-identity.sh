#!/usr/bin/env bash
# Handshakes that prove names, beside calls: of strangers in another network namespace, of 500 clients whose server
# is killed, and of 100 new nodes a second; and requests in the name of a live peer. Prints figures with thresholds. The
# ratios compare times of one run; with --strict they are judged.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

# Optimised: without, one core does not make 100 handshakes a second.
if ! cargo build --release --locked --quiet --package trunkline-testkit --features rigs --examples; then
    fail identity-build "the example does not build"
    exit 1
fi
export STRICT=
if [[ ${1-} == --strict ]]; then STRICT=$1; fi
export PROGRAM=${CARGO_TARGET_DIR:-target}/release/examples/attacks TMPDIR=$scratch TRUNKLINE_LINK=udp

# row ATTACK [OPTION...]: runs an attack on nodes with identities.
row() {
    local attack=$1
    shift
    timeout 300 "$PROGRAM" run "$attack" --identities ${STRICT:+"$STRICT"} "$@" 2>"$TMPDIR/errors"
    local status=$?
    if ((status != 0)); then tail -n 5 "$TMPDIR/errors"; fi
    return "$status"
}

# The attacker and the clients in one namespace, the servers in another. Without namespaces all strangers are one host.
inside() {
    mount -t proc none /proc && mount -t tmpfs none /run && mkdir -p /run/netns && ip netns add servers &&
        ip link add near type veth peer name far netns servers || return 3
    join near 10.97.0.1 10.98.0 254 10.99.0 10.97.0.2 || return 3
    nsenter --net=/run/netns/servers bash -c 'join far 10.97.0.2 10.99.0 8 10.98.0 10.97.0.1' || return 3
    row "$@" --far /run/netns/servers
}

# join LINK ADDRESS OWN COUNT OTHER GATEWAY: sets a namespace's addresses, OWN.1 to OWN.COUNT, and its route to the other's.
join() {
    ip link set lo up && ip link set "$1" up && ip address add "$2/30" dev "$1" && ip route add "$5.0/24" via "$6" &&
        for n in $(seq "$4"); do echo "address add $3.$n/32 dev $1"; done | ip -batch -
}
export -f row inside join

# apart ATTACK: runs an attack in namespaces.
apart() {
    timeout 300 unshare --user --map-root-user --net --mount --pid --fork --kill-child bash -c 'inside "$@"' inside "$@"
    local status=$?
    if ((status == 3)); then
        skip "identity-$1" "links between namespaces cannot be made here"
    else
        verdict "identity-$1" "$status" "see the claims above"
    fi
}

if need identity-unproven unshare util-linux && need identity-unproven ip iproute2; then
    apart unproven
    apart restart
fi
for attack in return newcomers; do
    row "$attack"
    verdict "identity-$attack" $? "see the claims above"
done
exit "$check_status"
