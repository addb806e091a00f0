#!/usr/bin/env bash
# `trunkctl doctor` on the kernel's soft RoCE: it opens the device and names its connections, its MTU and its GIDs. The checks of the
# software device fail in this guest, where the module holds UDP port 4791.
#
# carries: trunkline-deploy/trunkctl
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

# names_device: the finding of the device has all of its properties.
names_device() {
    local part line
    trunkctl doctor --no-calls >/tmp/doctor
    cat /tmp/doctor
    line=$(grep "^ok  *RDMA device $device, opened: " /tmp/doctor) || { echo "no finding of $device" && return 1; }
    for part in "no XRC, so nodes use RC" "port 1 is Active with an MTU of 1024" "GID $gid is $address"; do
        grep -qF "$part" <<<"$line" || { echo "the finding does not contain $part" && return 1; }
    done
}

PATH=$PATH:/lab/bin
check doctor-device 60 names_device
exit "$check_status"
