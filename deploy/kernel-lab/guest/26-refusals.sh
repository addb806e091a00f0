#!/usr/bin/env bash
# Refusals of the kernel, reported by the adapter over rdma-core with cause and remedy: too little memory that may be locked, files
# that may not be opened, a module that is not loaded, and no device.
# carries: trunkline-rdma-core/examples/devices
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

# fails_with PATTERN COMMAND...: the command has to fail with output that matches.
fails_with() {
    local pattern=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "it did not fail: $output"
        return 1
    fi
    echo "$output"
    grep -qE "$pattern" <<<"$output"
}

# as_nobody COMMAND...: without any privilege.
as_nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

open_to_all() { chmod 666 /dev/infiniband/uverbs* /dev/infiniband/rdma_cm; }

little_locked_memory() {
    open_to_all
    ulimit -l 64
    fails_with 'RLIMIT_MEMLOCK.*ulimit -l' as_nobody /lab/bin/devices 1
}

closed_files() {
    chmod 600 /dev/infiniband/uverbs*
    fails_with 'permission denied: /dev/infiniband' as_nobody /lab/bin/devices
    local status=$?
    open_to_all
    return "$status"
}

no_rdma_ucm() {
    rmmod rdma_ucm
    # The kernel loads the module on demand.
    local helper
    helper=$(</proc/sys/kernel/modprobe)
    echo /nowhere >/proc/sys/kernel/modprobe
    fails_with 'modprobe rdma_ucm' /lab/bin/devices
    local status=$?
    echo "$helper" >/proc/sys/kernel/modprobe
    modprobe rdma_ucm && return "$status"
}

no_device() {
    device_down && fails_with 'no RDMA device' /lab/bin/devices
    local status=$?
    device_up && return "$status"
}

check devices 30 /lab/bin/devices
check refused-memlock 30 little_locked_memory
check refused-permission 30 closed_files
check refused-no-module 30 no_rdma_ucm
check refused-no-device 60 no_device
exit "$check_status"
