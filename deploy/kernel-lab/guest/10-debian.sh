#!/usr/bin/env bash
# Debian's verbs programs on the kernel's soft RoCE, both sides in one guest: shows that the lab itself works, before any of our
# own code runs in it. XRC is left out: rxe has none.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

# pingpong NAME PROGRAM ARGUMENTS...: over a TCP socket for the set-up.
pingpong() {
    local run="$2 -d $device -g ${gid:-0} -p 18515 ${*:3}"
    check "$1" 60 exchange tcp 18515 "$run" "$run $address"
}

# perf NAME PROGRAM ARGUMENTS...: one of perftest.
perf() {
    local run="$2 -F -d $device -x ${gid:-0} -p 18516 ${*:3}"
    check "$1" 60 exchange tcp 18516 "$run" "$run $address"
}

check debian-devinfo 20 ibv_devinfo -d "$device" -v
pingpong debian-rc ibv_rc_pingpong -n 200 -c
pingpong debian-srq ibv_srq_pingpong -n 100 -q 4
pingpong debian-uc ibv_uc_pingpong -n 100
pingpong debian-ud ibv_ud_pingpong -n 100 -s 1024
check debian-rdma-server 30 exchange cm 7471 "rdma_server -s $address" "rdma_client -s $address"
check debian-rping 60 exchange cm 7174 "rping -s -a $address -C 5 -V -S 4097" "rping -c -a $address -C 5 -V -S 4097"
check debian-ucmatose 60 exchange cm 7471 "ucmatose -b $address" "ucmatose -s $address"
check debian-udaddy 60 exchange cm 7174 "udaddy -b $address" "udaddy -s $address"
perf debian-send-lat ib_send_lat -n 100 -s 64
perf debian-write-bw ib_write_bw -n 100 -s 65536
perf debian-read-bw ib_read_bw -n 50 -s 65536
perf debian-atomic-lat ib_atomic_lat -n 50 -A FETCH_AND_ADD
exit "$check_status"
