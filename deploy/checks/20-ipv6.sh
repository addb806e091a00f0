#!/usr/bin/env bash
# The demo over IPv6 in a separate user and network namespace: two processes on ::1, and on two addresses. Over UDP, as between hosts.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

need ipv6 unshare util-linux && need ipv6 ip iproute2 || exit 0
if ! why=$(unshare --user --map-root-user --net true 2>&1); then
    skip ipv6 "no user and network namespaces here: $why"
    exit 0
fi
if [[ ! -e /proc/net/if_inet6 ]]; then
    skip ipv6 "this kernel has no IPv6"
    exit 0
fi
if ! build; then
    fail ipv6-build "the demo does not build"
    exit 1
fi

small_tree "$scratch/tree"
# nodad: a new address would otherwise be tentative for a second and could not be bound.
inside='
    ip link set lo up &&
    ip -6 addr add fd00::1/128 dev lo nodad &&
    ip -6 addr add fd00::2/128 dev lo nodad || exit 77
    exec "$programs/trunkline-demo" "$@"
'

# demo NAME SERVER-ADDRESS CLIENT-ADDRESS
demo() {
    local report=$scratch/$1.json status
    TRUNKLINE_LINK=udp TRUNKLINE_RUNTIME_DIR=$scratch/run timeout 180 unshare --user --map-root-user --net bash -c "$inside" demo \
        --allow-unauthenticated --server-address "$2" --client-address "$3" --tree "$scratch/tree" --calls 2000 \
        --json "$report"
    status=$?
    if ((status == 77)); then
        skip "$1" "the namespace does not accept IPv6 addresses"
        return
    fi
    verdict "$1-demo" "$status" "the demo ended with status $status"
    report_has "$report" files=5 mismatches=0 calls=2000
    verdict "$1-report" $? "the report is not 5 files, 0 mismatches, 2000 calls: $(cat "$report" 2>&1)"
}

demo ipv6-one-address ::1 ::1
demo ipv6 fd00::1 fd00::2
exit "$check_status"
