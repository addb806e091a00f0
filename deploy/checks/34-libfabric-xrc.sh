#!/usr/bin/env bash
# libfabric's verbs provider over XRC, unmodified, on the drop-in libraries: fi_pingpong with its data check, in both directions,
# and servers of one host that share a TGT through the connection manager's SIDR (our program, compiled here).
#
# deploy/checks/34-libfabric-xrc.sh [--list] [PATTERN]: the runs whose name matches; --list only prints them.
# shellcheck source-path=SCRIPTDIR source=common.bash source=programs.bash
. "$(dirname "$0")/common.bash"
. deploy/checks/programs.bash
choose "$@"
time_up=$((SECONDS + 300))
xrc="env FI_VERBS_PREFER_XRC=1 FI_OFI_RXM_USE_SRX=1"

has_compiler="" has_tshark=""
if ((!listing)); then
    places_possible libfabric-xrc && need libfabric-xrc fi_pingpong libfabric-bin || exit 0
    if need libfabric-xrc-shared cc gcc && need_file libfabric-xrc-shared /usr/include/rdma/fabric.h libfabric-dev; then has_compiler=1; fi
    if need libfabric-xrc-packets tshark tshark; then has_tshark=1; fi
    enter_places libfabric-xrc "$@"
    if [[ $has_compiler ]] && ! why=$(cc -std=gnu11 -Wall -Wextra -Werror -O1 -o "$scratch/libfabric_xrc" \
        transport/dropin/tests/c/libfabric_xrc.c -lfabric 2>&1); then
        fail libfabric-xrc-compile "$(tail -n 3 <<<"$why")"
        exit 1
    fi
    if [[ $has_compiler ]]; then tar -C "$scratch" -c libfabric_xrc | (in_place near tar -x -C /tmp); fi
else
    has_compiler=1 has_tshark=1
fi

# Swaps "near" and "far" for the following runs.
swap_places() {
    local place=${holder[near]-} address=$near_address
    holder[near]=${holder[far]-} holder[far]=$place
    near_address=$far_address far_address=$address
}

# With the domain named, fi_pingpong fails without XRC.
pingpong() {
    local run="$xrc fi_pingpong -p verbs;ofi_rxm -e rdm -d trunkline0-xrc -c -S all -I 5"
    exchange "libfabric-xrc-pingpong-$1" tcp "$2" 60 "env TRUNKLINE_ADDRESS=%s $run -B %p" "$run -P %p %s"
}

# shared NAME WHERE [CAPTURE]: three servers of one host, and a client that exchanges messages with each.
shared() {
    local name=$1 capture=${3-} at=near address=$near_address why="" began=$SECONDS until=$((SECONDS + 60)) place pid pids=() ports=() program
    if ! chosen "$name"; then return; fi
    if [[ $2 == two ]]; then at=far address=$far_address; fi
    program="$xrc FI_VERBS_XRCD_FILENAME=/tmp/domain-$name ${capture:+TRUNKLINE_PCAP=$capture} /tmp/libfabric_xrc"
    if ((listing)); then
        printf '%-44s %s\n' "$name" "$program serve HOST PORT (three) | $program ask HOST PORT PORT PORT"
        return
    fi
    rm -f "$scratch/run".*
    for place in 0 1 2; do
        ports+=("$((next_port++))")
        # shellcheck disable=SC2086 # the command is a list of words
        start "$at" "$scratch/run.server$place" ${program/"TRUNKLINE_PCAP=$capture"/} serve "$address" "${ports[place]}"
        pids+=("$started")
    done
    until [[ $(cat "$scratch"/run.server*.out | grep -cx ready) == 3 ]] || ((SECONDS > until)); do tick; done
    # shellcheck disable=SC2086
    start near "$scratch/run.client" $program ask "$address" "${ports[@]}"
    for pid in "$started" "${pids[@]}"; do
        until finished "$pid" || ((SECONDS > until)); do tick; done
        if ((SECONDS > until)); then
            stop "$pid"
            status="unknown, after 60 s"
        fi
        if [[ $status != 0 ]]; then why+="a process ended with status $status; "; fi
    done
    if [[ $(cat "$scratch"/run.*.out | grep -cx ok) != 4 ]]; then why+="not all of them said ok; "; fi
    look_for_errors "$scratch/run"
    record "$name" "$why" $((SECONDS - began)) "${why:+$(last_output)}"
}

pingpong here two
swap_places
pingpong back two
swap_places
if [[ $has_compiler ]]; then
    shared libfabric-xrc-shared-one one
    faults="drop=0.01,seed=33"
    shared libfabric-xrc-shared-one-lossy one
    faults=""
    shared libfabric-xrc-shared-two two /tmp/libfabric-xrc.pcap
fi
# The packets of the last run's client: XRC packets, and SIDR requests with replies.
if [[ $has_compiler && $has_tshark ]] && ((!listing)) && chosen libfabric-xrc-packets; then
    (in_place near cat /tmp/libfabric-xrc.pcap) >"$scratch/client.pcap"
    count() { tshark -r "$scratch/client.pcap" -Y "$1" 2>/dev/null | wc -l; }
    seen="$(count 'infiniband.bth.opcode >= 0xa0 && infiniband.bth.opcode <= 0xb4') $(count 'infiniband.mad.attributeid == 0x17') $(count 'infiniband.mad.attributeid == 0x18')"
    read -r data asked answered <<<"$seen"
    ((data > 20 && asked >= 2 && answered >= 2))
    record_status libfabric-xrc-packets $? "$data packets of XRC, $asked SIDR requests, $answered replies"
fi
table
exit "$check_status"
