#!/usr/bin/env bash
# The conformance suite on provider rdma-core over the kernel's soft RoCE. The device has no XRC, so items of XRC are skipped, with
# that reason in the suite's own table; the items of RC and SRQs are checked.
#
# carries: trunkline-rdma-core/examples/nic_conformance
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

PATH=$PATH:/lab/bin
check conformance 240 nic_conformance --address "$address"
exit "$check_status"
