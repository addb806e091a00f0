#!/usr/bin/env bash
# Connections of the adapter through Debian's librdmacm and the kernel's connection manager: RC over IPv4 and IPv6. XRC is left out:
# rxe has none.
# carries: trunkline-rdma-core/tests/connections
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

export TRUNKLINE_REQUIRE_DEVICE=1 RUST_BACKTRACE=0
check connections 120 /lab/bin/connections --test-threads 1 --nocapture
exit "$check_status"
