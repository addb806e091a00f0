#!/usr/bin/env bash
# Eight nodes, all to all, over the kernel's RDMA: one address is really dead (the kernel sends ARP requests for seconds), and one
# peer accepts requests and never replies.
# carries: trunkline-transport/tests/mesh
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

# An unused address of the guest's network.
export TRUNKLINE_MESH_ADDRESS=$address TRUNKLINE_MESH_DEAD=${address%.*}.99 TRUNKLINE_MESH_POLLERS=1 RUST_BACKTRACE=0
check mesh 120 /lab/bin/mesh on_nic --nocapture
exit "$check_status"
