#!/usr/bin/env bash
# Unmodified third-party applications on the drop-in libraries: qperf, fio, libfabric's verbs provider, UCX's
# rc_verbs transport and QEMU's live migration, each between processes of one address and across two network namespaces.
#
# deploy/checks/33-applications.sh [--list] [PATTERN]: the runs whose name matches; --list only prints them.
# shellcheck source-path=SCRIPTDIR source=common.bash source=programs.bash
. "$(dirname "$0")/common.bash"
. deploy/checks/programs.bash
choose "$@"
time_up=$((SECONDS + 420))
machine="qemu-system-x86_64 -machine q35,accel=tcg -m 64 -nodefaults -display none -kernel /tmp/guest"

# The available applications, after an attempt to install missing ones. Those that stay missing are printed as skips.
declare -A have=()
for_each_application() {
    "$1" qperf qperf qperf
    "$1" fio fio fio
    "$1" fi_pingpong fi_pingpong libfabric-bin
    "$1" ucx ucx_perftest ucx-utils
    "$1" qemu qemu-system-x86_64 qemu-system-x86
}
look_for() { if need "$@"; then have[$1]=1; fi; }
assume() { have[$1]=1; }

if ((listing)); then
    for_each_application assume
else
    places_possible applications || exit 0
    for_each_application look_for
    if [[ ${have[qemu]-} ]]; then need qemu python3 python3-minimal || unset "have[qemu]"; fi
    enter_places applications "$@"
fi

# UCX considers a device accessible if its character device exists, and does not open it. Any device file will do, in a
# private /dev of each namespace.
show_device_file() {
    # shellcheck disable=SC2016 # the quoted text is for the shell in the namespace
    (in_place near bash -c 'mkdir /tmp/dev && mount -t tmpfs -o mode=0755 tmpfs /tmp/dev && cd /tmp/dev && mkdir shm infiniband &&
        mount -t tmpfs -o mode=1777 tmpfs shm &&
        for node in null zero full random urandom; do touch $node && mount --bind /dev/$node $node || exit; done
        touch infiniband/uverbs0 && mount --bind /dev/null infiniband/uverbs0 && mount --rbind /tmp/dev /dev') 2>"$scratch/device.log"
}

# Only UCX's lower layer, UCT: the layer above connects through UD QPs.
ucx_runs() {
    local where=$1 run="ucx_perftest -p %p -d trunkline0:1 -x rc_verbs"
    transfer() { exchange "ucx-$1-$2-$where" tcp "$where" 60 "$run -t $1 -D $2 -s $3" "$run -t $1 -D $2 -s $3 -n 500 -w 50 %s"; }
    transfer am_lat short 8
    transfer am_bw bcopy 4096
    transfer am_bw zcopy 8000
    transfer put_bw short 8
    transfer put_bw zcopy 65536
    transfer get bcopy 4096
    transfer get zcopy 65536
    transfer fadd short 8
    transfer cswap short 8
}

# Only with the connection manager: otherwise qperf sends no GID, which RoCE needs.
qperf_runs() {
    local where=$1 run="qperf -lp %p" tests
    tests="rc_bw rc_bi_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat"
    tests+=" rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add"
    exchange "qperf-$where" tcp "$where" 60 "$run" "$run -t 1 -cm 1 %s $tests quit"
}

# fio buffers the server's output, hence stdbuf. It posts receives for the expected messages and requests
# no RNR retries, so with send the server has one receive for each message. One risk remains: the client begins half a
# second after the server is ready, and the server may not have run in that time.
fio_runs() {
    local where=$1 verb run="stdbuf -oL fio --thread --ioengine=rdma --port=%p --size=8m --bs=64k"
    client_says='io=8192KiB \(8389kB\)'
    for verb in write read send; do
        if [[ $verb == send ]]; then attempts=3 again_for='RNR|receiver not ready'; fi
        exchange "fio-$verb-$where" "says waiting for connection" "$where" 60 "$run --name=server --rw=read --iodepth=128" \
            "$run --name=client --hostname=%s --verb=$verb --rw=write --iodepth=4"
    done
    client_says="" attempts=1 again_for=""
}

# libfabric's servers advertise the device's address if localhost has no device.
libfabric_runs() {
    local where=$1 run="fi_pingpong -c -S all -I 5"
    pingpong() { exchange "fi_pingpong-$1-$where" tcp "$where" 60 "env TRUNKLINE_ADDRESS=%s $run $2 -B %p" "$run $2 -P %p %s"; }
    pingpong msg "-p verbs -e msg"
    pingpong rdm "-p verbs;ofi_rxm -e rdm"
    pingpong rdm-tagged "-p verbs;ofi_rxm -e rdm -m tagged"
    # With the domain named, fi_pingpong fails without XRC.
    run="env FI_VERBS_PREFER_XRC=1 FI_OFI_RXM_USE_SRX=1 $run"
    pingpong xrc "-p verbs;ofi_rxm -e rdm -d trunkline0-xrc"
}

# A running guest migrates, with its memory pinned as a whole or in pieces. Afterwards no byte of its memory may differ.
qemu_runs() {
    local where=$1 pinned
    client_says='completed, running, 0 of [0-9]+ bytes differ'
    for pinned in off on; do
        exchange "qemu-migration-pinned-$pinned-$where" now "$where" 60 "$machine -S -incoming defer -qmp unix:/tmp/%p,server=on,wait=off" \
            "python3 -B /tmp/migration.py migrate /tmp/%p %s %p $pinned $machine"
    done
    client_says=""
}

if [[ ${have[qemu]-} ]] && ((!listing)); then
    (in_place near tee /tmp/migration.py) <deploy/checks/migration.py >/dev/null
    python3 -B deploy/checks/migration.py guest | (in_place near tee /tmp/guest) >/dev/null
fi
if [[ ${have[ucx]-} ]] && ((!listing)) && ! show_device_file; then
    skip ucx "a private /dev cannot be created here: $(tail -n 1 "$scratch/device.log")"
    unset "have[ucx]"
fi
for where in one two; do
    if [[ ${have[qperf]-} ]]; then qperf_runs $where; fi
    if [[ ${have[fio]-} ]]; then fio_runs $where; fi
    if [[ ${have[fi_pingpong]-} ]]; then libfabric_runs $where; fi
    if [[ ${have[ucx]-} ]]; then ucx_runs $where; fi
    if [[ ${have[qemu]-} ]]; then qemu_runs $where; fi
done
table
exit "$check_status"
