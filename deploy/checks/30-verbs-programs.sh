#!/usr/bin/env bash
# Unmodified third-party programs on the drop-in libraries: Debian's ibverbs-utils, rdmacm-utils and perftest, each
# between processes of one address and across two network namespaces, and a program compiled here. Processes of one address
# use shared memory in runs without loss, unless TRUNKLINE_LINK=udp is set. Processes of two namespaces use UDP.
#
# deploy/checks/30-verbs-programs.sh [--list] [PATTERN]: the runs whose name matches; --list only prints them.
# shellcheck source-path=SCRIPTDIR source=common.bash source=programs.bash
. "$(dirname "$0")/common.bash"
. deploy/checks/programs.bash
choose "$@"
time_up=$((SECONDS + 660))
has_compiler=1

if ((!listing)); then
    need verbs-programs ibv_xsrq_pingpong ibverbs-utils && need verbs-programs rdma_xserver rdmacm-utils || exit 0
    need perftest ib_send_bw perftest
    places_possible verbs-programs || exit 0
    need last-message cc gcc && need_file last-message /usr/include/rdma/rdma_verbs.h librdmacm-dev || has_compiler=""
    enter_places verbs-programs "$@"
    if [[ $has_compiler ]] && ! why=$(cc -std=gnu11 -Wall -Wextra -Werror -O1 -o "$scratch/last_message" \
        transport/dropin/tests/c/last_message.c -lrdmacm -libverbs 2>&1); then
        fail last-message-compile "$(tail -n 3 <<<"$why")"
        exit 1
    fi
    if [[ $has_compiler ]]; then tar -C "$scratch" -c last_message | (in_place near tar -x -C /tmp); fi
fi

# A program exits as soon as it has its last message. Its device then repeats the last acknowledgement. If all copies are
# lost, the peer can't succeed on any device. Each attempt loses different packets.
lossy() { faults="drop=0.01,seed=$1%a" attempts=3; }
lossless() { faults="" attempts=1; }

devices() {
    if single devices 20 ibv_devices; then contains devices-name 'trunkline0[[:space:]]+[0-9a-f]{16}'; fi
    if single devinfo-list 20 ibv_devinfo -l; then contains devinfo-list-name trunkline0; fi
    if single devinfo 20 ibv_devinfo -v; then
        contains devinfo-xrc '^[[:space:]]+XRC$'
        contains devinfo-port 'state:[[:space:]]+PORT_ACTIVE'
        contains devinfo-ethernet 'link_layer:[[:space:]]+Ethernet'
        contains devinfo-gid "GID\[ *0\]:[[:space:]]+::ffff:${near_address//./\\.}, RoCE v2"
    fi
}

# contains NAME PATTERN: passes if a line of the last single run matches.
contains() {
    grep -qE "$2" "$scratch/run.out"
    record_status "$1" $? "no line matches $2"
}

# The argument of each function is the location of the two sides: one address, or two.
rc_pingpong() {
    local where=$1 size run="ibv_rc_pingpong -p %p -g 0 -m 1024"
    ibv() { exchange "rc-pingpong-$1-$where" tcp "$where" 60 "$run $2" "$run $2 %s"; }
    ibv 10000 "-c -n 10000"
    ibv events "-c -e -n 10000"
    ibv new-send "-c -N -n 2000"
    for size in 1 64 1024 1025 65536 1048576; do ibv "size-$size" "-c -n 100 -s $size -r 50"; done
    lossy 11
    ibv lossy "-c -n 300"
    lossless
}

srq_pingpong() {
    local where=$1 size run="ibv_srq_pingpong -p %p -g 0 -m 1024"
    ibv() { exchange "srq-pingpong-$1-$where" tcp "$where" 60 "$run $2" "$run $2 %s"; }
    ibv 10000 "-c -q 4 -n 2500"
    ibv events "-c -e -q 16 -n 625"
    for size in 1 65536; do ibv "size-$size" "-c -q 2 -n 100 -s $size -r 50"; done
    lossy 12
    ibv lossy "-c -q 3 -n 300"
    lossless
}

xsrq_pingpong() {
    local where=$1 size run="ibv_xsrq_pingpong -p %p -g 0 -m 1024"
    ibv() { exchange "xsrq-pingpong-$1-$where" tcp "$where" 60 "$run -c $3 $2" "$run $2 %s" "$3"; }
    ibv 10000 "-n 10000" 1
    ibv events "-e -n 10000" 1
    ibv clients "-n 10000" 3
    ibv clients-events "-e -n 3000" 3
    for size in 1 1025 65536 1048576; do ibv "size-$size" "-n 100 -s $size" 1; done
    lossy 13
    ibv lossy "-n 300" 1
    ibv clients-lossy "-n 300" 3
    lossless
}

rdma_pairs() {
    local where=$1 type
    exchange "rdma-server-$where" cm "$where" 30 "rdma_server -s %s -p %p" "rdma_client -s %s -p %p"
    exchange "rdma-server-wildcard-$where" cm "$where" 30 "rdma_server -p %p" "rdma_client -s %s -p %p"
    for type in r x; do
        exchange "rdma-xserver-$type-$where" cm "$where" 30 "rdma_xserver -p %p -c $type" "rdma_xclient -s %s -p %p -c $type"
    done
    lossy 14
    exchange "rdma-server-lossy-$where" cm "$where" 30 "rdma_server -s %s -p %p" "rdma_client -s %s -p %p"
    exchange "rdma-xserver-x-lossy-$where" cm "$where" 30 "rdma_xserver -p %p -c x" "rdma_xclient -s %s -p %p -c x"
    lossless
}

rping_runs() {
    local where=$1 size run="rping -a %s -p %p -V"
    ping() { exchange "rping-$1-$where" cm "$where" 60 "$run $2 -s" "$run $2 -c"; }
    ping 10000 "-C 10000"
    ping own-qp "-q -C 300"
    for size in 64 1024 4097 65535; do ping "size-$size" "-C 100 -S $size"; done
    lossy 15
    ping lossy "-C 300"
    lossless
}

ucmatose_runs() {
    local where=$1
    cmatose() { exchange "ucmatose-$1-$where" cm "$where" 60 "ucmatose -b %s -p %p $2" "ucmatose -s %s -p %p $2"; }
    cmatose 10000 "-C 10000"
    cmatose connections "-c 20 -C 100 -S 4096"
    cmatose migrate "-m -c 3 -C 50"
    cmatose no-data "-c 5 -C 0"
    lossy 16
    cmatose lossy "-C 300"
    lossless
}

# Use of queues: several QPs, both ways at once, few completions, lists of requests, shared receive queues,
# inline data, small packets, the older posting calls. The outstanding data of several QPs must fit in the receive buffer that
# they share: see "Several QPs" in docs/book/src/reference/software-device.md.
perftest_options() {
    local where=$1 operation few="-s 4096 -t 4"
    options() { exchange "$2-$1-$where" tcp "$where" 60 "$2 -F -x 0 -p %p -n 512 $3" "$2 -F -x 0 -p %p -n 512 $3 %s"; }
    for operation in send write read; do
        options qps ib_${operation}_bw "-q 4 $few"
        options qps-xrc ib_${operation}_bw "-c XRC -q 4 $few"
        options both-ways ib_${operation}_bw "-b -q 3 $few"
        options moderation ib_${operation}_bw "-t 64 -Q 16"
        options lists ib_${operation}_bw "-l 8"
        options mtu-256 ib_${operation}_bw "-m 256"
        options old-post ib_${operation}_bw "--use_old_post_send"
    done
    options srq ib_send_bw "--use-srq -q 4 $few"
    options srq-xrc ib_send_bw "--use-srq -q 4 -c XRC $few"
    options inline ib_send_lat "-I 64 -s 64"
    options inline ib_write_lat "-I 64 -s 64"
    options one-outstanding ib_read_bw "-o 1"
    options compare ib_atomic_bw "-A CMP_AND_SWAP -b -q 2"
    options add ib_atomic_bw "-A FETCH_AND_ADD -b -q 2"
}

perftest_runs() {
    local where=$1 program type run
    for program in ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat; do
        for type in RC XRC; do
            run="$program -F -x 0 -p %p -n 500 -c $type"
            exchange "$program-$type-$where" tcp "$where" 60 "$run" "$run %s"
        done
    done
    run="ib_send_bw -F -x 0 -p %p -n 500 -e"
    exchange "ib_send_bw-events-$where" tcp "$where" 60 "$run" "$run %s"
    perftest_options "$where"
    run="ib_send_bw -F -x 0 -p %p -n 5"
    if [[ $where == two ]]; then run+=" -a"; else run+=" -s 8388608"; fi
    exchange "ib_send_bw-sizes-$where" tcp "$where" 120 "$run" "$run %s"
    # With -R, client and server first use one connection and then set up a second one independently: the client connects, the
    # server listens, and neither waits for the other. If the client is first, it is rejected with reason 8, and crashes when it
    # retries. The client therefore runs at a lower priority than the server.
    run="ib_write_bw -F -R -p %p -n 500"
    attempts=5 again_for='RDMA_CM_EVENT_REJECTED; error: 8'
    exchange "ib_write_bw-cm-$where" cm "$where" 60 "$run" "nice -n 19 $run %s"
    attempts=1 again_for=""
}

devices
for where in one two; do
    rc_pingpong $where
    srq_pingpong $where
    xsrq_pingpong $where
    rdma_pairs $where
    rping_runs $where
    ucmatose_runs $where
done
# The sender's messages to receivers that return from main as soon as they have polled their last message.
if [[ $has_compiler ]]; then single last-message 60 /tmp/last_message "$near_address" "$((next_port++))" 30; fi
if ((listing)) || command -v ib_send_bw >/dev/null; then
    for where in one two; do perftest_runs $where; done
fi
table
exit "$check_status"
