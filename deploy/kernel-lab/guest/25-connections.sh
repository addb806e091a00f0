#!/usr/bin/env bash
# Connections of the adapter through Debian's librdmacm and the kernel's connection manager: RC over IPv4 and IPv6. XRC is left out:
# rxe has none.
# carries: trunkline-rdma-core/tests/connections
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

export TRUNKLINE_REQUIRE_DEVICE=1 RUST_BACKTRACE=0
# Removes the device while endpoints of all kinds use it, and restores it for the groups after this.
removal() {
    local status=0
    TRUNKLINE_REMOVE_COMMAND="rdma link delete $device" \
        /lab/bin/connections every_endpoint_gets_event_when_device_is_removed --nocapture || status=$?
    device_up && return "$status"
}

check connections 120 /lab/bin/connections --test-threads 1 --nocapture
check connections-removal 90 removal
exit "$check_status"
