#!/usr/bin/env bash
# The demo over IPv6, in a user and network namespace of its own with two addresses on its loopback (::1 alone is one).
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
if ! build trunkline-demo; then
    fail ipv6-build "the demo does not build"
    exit 1
fi

small_tree "$scratch/tree"
# nodad: a fresh address is tentative for a second otherwise, and cannot be bound.
inside='
    ip link set lo up &&
    ip -6 addr add fd00::1/128 dev lo nodad &&
    ip -6 addr add fd00::2/128 dev lo nodad || exit 77
    exec cargo --offline demo -- "$@"
'
timeout 180 unshare --user --map-root-user --net bash -c "$inside" demo --allow-unauthenticated \
    --server-address fd00::1 --client-address fd00::2 --tree "$scratch/tree" --calls 2000 --json "$scratch/report.json"
status=$?
if ((status == 77)); then
    skip ipv6 "the namespace takes no IPv6 addresses"
    exit 0
fi
verdict ipv6-demo "$status" "the demo ended with status $status"
report_has "$scratch/report.json" files=5 mismatches=0 calls=2000
verdict ipv6-report $? "the report is not 5 files, 0 mismatches, 2000 calls: $(cat "$scratch/report.json" 2>&1)"
exit "$check_status"
