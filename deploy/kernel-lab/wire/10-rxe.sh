#!/usr/bin/env bash
# The software device on this machine against the kernel's soft RoCE in a guest: Debian's programs and the project's own
# on either side, both ways round, on a clean link and on one that loses, duplicates and reorders packets.
#
# deploy/kernel-lab/wire/10-rxe.sh [--list]; LAB_PATTERN chooses by name.
# carries: trunkline-softrdma/examples/wire_peer trunkline-rdma-core/examples/nic_wire_peer trunkline-deploy/trunkctl
# shellcheck source-path=SCRIPTDIR source=../../checks/common.bash
. "$(dirname "$0")/../../checks/common.bash"
lab=deploy/kernel-lab
# shellcheck source=../../checks/programs.bash
. deploy/checks/programs.bash
# shellcheck source=../image.bash
. "$lab/image.bash"
# shellcheck source=../boot.bash
. "$lab/boot.bash"
# shellcheck source=../binaries.bash
. "$lab/binaries.bash"
# shellcheck source=peer.bash
. "$lab/wire/peer.bash"
pattern=${LAB_PATTERN:-}
choose "$@"
own=$(realpath -m "$(binary trunkline-softrdma/examples/wire_peer)")
nic=/usr/bin/nic_wire_peer

# both NAME KIND SECONDS SERVER CLIENT HERE THERE: the same programs both ways round. Arguments that differ between the sides are in
# HERE and THERE, which replace %a.
both() {
    local here_has=${6:-} there_has=${7:-}
    one "wire-$1-there" there "$2" "$3" "${4//%a/$there_has}" "${5//%a/$here_has}"
    one "wire-$1-here" here "$2" "$3" "${4//%a/$here_has}" "${5//%a/$there_has}"
}

# one NAME SIDE KIND SECONDS SERVER CLIENT
one() {
    local name=$1 began=$SECONDS attempt
    if ! chosen "$name"; then return; fi
    if ((listing)); then
        echo "$name"
        return
    fi
    for ((attempt = 1; attempt <= attempts; attempt++)); do
        meet "${@:2}"
        if [[ -z $why ]]; then break; fi
        if ((attempt < attempts)); then echo "again $name: $why"; fi
    done
    record "$name" "$why" $((SECONDS - began))
    if [[ -n $why ]]; then show; fi
}

# Debian's programs on both sides; those on this machine run on the drop-in libraries.
debian() {
    local size
    both rdma-server cm 20 "rdma_server -s %s -p %p" "rdma_client -s %s -p %p"
    for size in 64 1025 65535; do
        both "rping-$size" cm 40 "rping -s -a %s -p %p -V -C 20 -S $size" "rping -c -a %s -p %p -V -C 20 -S $size"
    done
    both ucmatose cm 30 "ucmatose -b %s -p %p -c 3 -C 10 -S 4097" "ucmatose -s %s -p %p -c 3 -C 10 -S 4097"
    local here_gid="-g 0" there_gid_option="-d rxe0 -g $there_gid"
    for size in 1 1023 4097 1048576; do
        both "rc-pingpong-$size" tcp 40 "ibv_rc_pingpong %a -p %p -m 1024 -c -n 10 -r 5 -s $size" \
            "ibv_rc_pingpong %a -p %p -m 1024 -c -n 10 -r 5 -s $size %s" "$here_gid" "$there_gid_option"
    done
    both srq-pingpong tcp 40 "ibv_srq_pingpong %a -p %p -m 1024 -c -q 3 -n 50" "ibv_srq_pingpong %a -p %p -m 1024 -c -q 3 -n 50 %s" \
        "$here_gid" "$there_gid_option"
}

perftest() {
    local program
    for program in "send_bw -n 50 -s 65536" "write_bw -n 50 -s 65536" "read_bw -n 20 -s 65536 -o 4" "send_lat -n 50 -s 64" "atomic_lat -n 20 -o 1 -A FETCH_AND_ADD" \
        "atomic_lat -n 20 -o 1 -A CMP_AND_SWAP"; do
        local name=${program%% *}
        if [[ $program == *CMP* ]]; then name=compare_lat; fi
        both "${name//_/-}" tcp 40 "ib_$program -F -p %p %a" "ib_$program -F -p %p %a %s" "-x 0" "-d rxe0 -x $there_gid"
    done
}

# Two processes at our address against the guest's device: one at full rate, next to which the other exchanges messages again and again.
# The guest counts one identification for its packets to both. LAB_NEIGHBOUR_SECONDS says how long.
neighbours() {
    neighbour wire-neighbour-there there
    neighbour wire-neighbour-here here
}

# neighbour NAME SIDE: the servers on SIDE.
neighbour() {
    local name=$1 side=$2
    if ! chosen "$name"; then return; fi
    if ((listing)); then
        echo "$name"
        return
    fi
    local began=$SECONDS busy_port=$((next_port++)) length=${LAB_NEIGHBOUR_SECONDS:-10} busy pid problem="" rounds=0
    busy="ib_send_bw -F -D $length -s 65536 -p $busy_port"
    if [[ $side == there ]]; then
        tell 20 start busy $((length + 30)) "$busy -d rxe0 -x $there_gid"
        tell 20 listens tcp "$busy_port" || problem="the busy server there did not listen; "
        # shellcheck disable=SC2086 # the commands are lists of words
        start near "$scratch/busy" $busy -x 0 "$there"
        pid=$started
    else
        # shellcheck disable=SC2086
        start near "$scratch/busy" $busy -x 0
        pid=$started
        serves_here tcp "$busy_port" "$pid" || problem="the busy server here did not listen; "
        tell 20 start busy $((length + 30)) "$busy -d rxe0 -x $there_gid $here"
    fi
    local here_has="-g 0" there_has="-d rxe0 -g $there_gid" server client
    server=$there_has client=$here_has
    if [[ $side == here ]]; then server=$here_has client=$there_has; fi
    while [[ -z $problem ]] && kill -0 "$pid" 2>/dev/null && ((SECONDS < began + length + 30)); do
        meet "$side" tcp 30 "ibv_rc_pingpong $server -p %p -m 1024 -c -n 50 -s 4097" "ibv_rc_pingpong $client -p %p -m 1024 -c -n 50 -s 4097 %s"
        problem=$why
        if [[ -n $why ]]; then show; fi
        ((rounds++))
    done
    ended_here "$pid" 30 || problem+="the busy program here ended with status $status; "
    tell $((length + 35)) wait busy || problem+="the busy program there ended with status $?; "
    if ((rounds < 2)); then problem+="only $rounds exchanges next to it"; fi
    echo "    $rounds exchanges next to the busy program"
    record "$name" "$problem" $((SECONDS - began))
    if [[ -n $problem ]]; then tail -n 12 "$scratch/busy.out" "$scratch/busy.err" "$there_said" | sed 's/^/    busy:  /'; fi
}

# The project's own program against Debian's.
own_against_debian() {
    one wire-own-rdma-client there cm 20 "rdma_server -s %s -p %p" "$own rdma-client $here %s %p"
    one wire-own-rdma-server here said 20 "$own rdma-server %s %p" "rdma_client -s %s -p %p"
    one wire-own-rping-client there cm 40 "rping -s -a %s -p %p -S 65535" "$own rping-client $here %s %p"
    one wire-own-rping-server here said 40 "$own rping-server %s %p" "rping -c -a %s -p %p -V -C 10 -S 4097"
}

# A fatal NAK is the first packet that one device ever sends to the other, and is sent only once. The programs are new
# processes and connect their QPs by hand, so nothing came before that would show the identifications of the guest.
first_nak() {
    one wire-first-nak-of-kernel there tcp 40 "$nic first-nak-server %s %p" "$own first-nak-client $here %s %p"
    one wire-first-nak-to-kernel here tcp 40 "$own first-nak-server %s %p" "$nic first-nak-client $there %s %p"
}

# The project's own program on both sides: over the software device here, over rdma-core there.
transfers=(send send-back send-immediate send-immediate-back send-inline send-inline-back write write-back write-immediate write-immediate-back
    read read-back atomics atomics-back batch many-reads traffic-end)
scenes=(starved-receiver connections-at-once disconnect-by-client disconnect-by-server reject-with-private-data nobody-listens wrong-key)

peers() {
    own_peers wire-peers-there there "" "${transfers[@]}" "${scenes[@]}"
    own_peers wire-peers-here here "" "${transfers[@]}" "${scenes[@]}"
    own_peers wire-peers-srq-there there srq "${transfers[@]}" "${scenes[@]}"
    own_peers wire-peers-srq-here here srq "${transfers[@]}" "${scenes[@]}"
}

# own_peers PREFIX SIDE HOW CHECK...: the server on SIDE; the client's verdict on each check, and on the bytes of both ends.
own_peers() {
    local prefix=$1 side=$2 how=$3 name line server=$own client=$nic
    shift 3
    if ((listing)); then
        for name in "$@" bytes; do if chosen "$prefix-$name"; then echo "$prefix-$name"; fi; done
        if [[ -z $faults ]] && chosen "$prefix-drops"; then echo "$prefix-drops"; fi
        return
    fi
    # If one check of an exchange is chosen, all of them run.
    for name in "$@" bytes drops; do if chosen "$prefix-$name"; then break; fi; done
    if ! chosen "$prefix-$name"; then return; fi
    if [[ $side == there ]]; then server=$nic client=$own; fi
    local address=$there
    if [[ $side == there ]]; then address=$here; fi
    local began=$SECONDS
    meet "$side" said 60 "$server server %s %p" "$client client $address %s %p $how"
    local said=$there_said
    if [[ $side == there ]]; then said=$scratch/here.out; fi
    for name in "$@"; do
        line=$(grep -E "^(pass|fail|skip) $name(:|\$)" "$said" | tail -n 1)
        case $line in
        pass*) record "$prefix-$name" "" 0 ;;
        skip*) skip "$prefix-$name" "${line#*: }" ;;
        fail*) record "$prefix-$name" "${line#*: }" 0 ;;
        *) record "$prefix-$name" "no verdict of the client" 0 ;;
        esac
    done
    # Each end prints what it checked, and fails if a byte was wrong.
    grep -hE '[0-9]+ bytes, [0-9]+ of them wrong' "$scratch/here.out" "$there_said" | sed 's/^/    /'
    sed -n 's/^counter /    here: /p' "$scratch/here.out" | tr '\n' ' '
    echo
    record "$prefix-bytes" "$why" $((SECONDS - began))
    if [[ -n $why ]]; then show; fi
    if [[ -z $faults ]]; then
        # No packet may count as forged or malformed, nor as foreign after the first three packets of the guest. Late packets, and
        # replies to repeated requests, are not drops; an acknowledgement may arrive after the end of its connection.
        line=$(grep -E '^counter (drop_[a-z_]+) ' "$scratch/here.out" | grep -vE 'drop_(stale_psn|unexpected_response|wrong_state|forgotten_duplicate) |drop_unproven_identification [12]$|drop_unknown_qp [12]$' | tr '\n' ' ')
        record "$prefix-drops" "$line" 0
    fi
}

# The same on a link that loses, duplicates and reorders in both directions: our device does so for the packets sent here, the kernel's
# queueing discipline for those of the guest.
lossy() {
    faults=drop=0.01,duplicate=0.01,reorder=0.02,seed=$1 attempts=3
    if ((!listing)); then
        tell 20 run tc qdisc add dev eth0 root netem delay 1ms loss 1% duplicate 1% reorder 98%
    fi
    own_peers wire-lossy-there there short "${transfers[@]}"
    own_peers wire-lossy-here here short "${transfers[@]}"
    both lossy-rping cm 60 "rping -s -a %s -p %p -V -C 20 -S 4097" "rping -c -a %s -p %p -V -C 20 -S 4097"
    both lossy-rdma-server cm 40 "rdma_server -s %s -p %p" "rdma_client -s %s -p %p"
    faults="" attempts=1
    if ((!listing)); then tell 20 run tc qdisc del dev eth0 root; fi
}

# A capture of the network, read by tshark and by our own decoder, with each side as the client in turn.
captured() {
    local name listed=()
    for name in wire-tshark wire-icrc wire-identification; do
        if chosen "$name"; then listed+=("$name"); fi
    done
    if ((${#listed[@]} == 0)); then return; fi
    if ((listing)); then
        printf '%s\n' "${listed[@]}"
        return
    fi
    for name in "${listed[@]}"; do
        if ! command -v dumpcap >/dev/null || ! command -v tshark >/dev/null; then skip "$name" "tshark and its dumpcap are not installed"; fi
    done
    if ! command -v dumpcap >/dev/null || ! command -v tshark >/dev/null; then return; fi
    local file=$scratch/wire.pcap pid problem="" until=$((SECONDS + 20))
    dumpcap -q -i wire -f "udp port 4791" -P -w "$file" 2>"$scratch/dumpcap.err" {ticks}<&- &
    pid=$!
    running+=("$pid")
    until [[ -s $file ]] || ((SECONDS > until)); do tick; done
    meet there said 60 "$nic server %s %p" "$own client $here %s %p short"
    problem+=$why
    meet here cm 40 "rping -s -a %s -p %p -V -C 5 -S 4097" "rping -c -a %s -p %p -V -C 5 -S 4097"
    problem+=$why
    kill -TERM "$pid"
    ended_here "$pid" 20
    if chosen wire-tshark; then record wire-tshark "$problem$(malformed "$file")" 0; fi
    if chosen wire-icrc; then 
        "$(binary trunkline-deploy/trunkctl)" pcap check --quiet --at-least 1000 "$file" >"$scratch/check.log" 2>&1
        record_status wire-icrc $? "$(tail -n 1 "$scratch/check.log")"
    fi
    if chosen wire-identification; then record wire-identification "$(identifications "$file")" 0; fi
}

# malformed FILE: the errors that tshark reports. Decoders that mistake short messages and private data for other protocols are off.
malformed() {
    local read=(tshark -r "$1" -o infiniband.try_heuristic_first:FALSE --disable-protocol infiniband_sdp --disable-protocol rpcordma) count
    count=$("${read[@]}" -Y infiniband 2>"$scratch/tshark.err" | wc -l)
    if ((count < 1000)); then echo "tshark sees $count packets; $(tail -n 1 "$scratch/tshark.err")"; fi
    "${read[@]}" -Y '_ws.malformed || _ws.expert.severity == "Error"' 2>/dev/null | head -n 3 | tr '\n' ';'
}

# identifications FILE: errors in the IP header fields that the ICRC covers and a socket does not report: our packets
# have identification 0 and DF set; those of soft RoCE have an incrementing identification.
identifications() {
    tshark -r "$1" -Y infiniband -T fields -e ip.src -e ip.id -e ip.flags.df 2>/dev/null >"$scratch/identifications"
    awk -v here="$here" '$1 == here && ($2 != "0x0000" || $3 != 1) { wrong++ } $1 == here { ours++ } $1 != here { theirs++; df += $3 } END {
        if (ours < 100 || theirs < 100) printf "%d packets of ours, %d of theirs; ", ours, theirs
        if (wrong > 0) printf "%d packets of ours with an identification or without DF; ", wrong
        printf "    there: %d of %d packets may not be fragmented\n", df, theirs >"/dev/stderr" }' "$scratch/identifications" 2>"$scratch/identifications.note"
    cat "$scratch/identifications.note" >&2
}

run_all() {
    debian
    perftest
    neighbours
    own_against_debian
    first_nak
    captured
    peers
    lossy 4
}

if ((listing)); then
    run_all
    exit 0
fi
if [[ -z ${LAB_WIRE_INSIDE:-} ]]; then
    wire_possible wire || exit 0
    build_possible wire || exit 0
    if ((EUID == 0)); then need wire-tshark tshark tshark && need wire-tshark dumpcap wireshark-common; fi
    if ! cargo dropin >/dev/null || ! build_binaries "$0"; then
        fail wire-build "the drop-in libraries, wire_peer, nic_wire_peer or trunkctl do not build"
        exit 1
    fi
    enter_wire_namespace "$@"
fi
if ! make_image || ! make_wire 400 -c "$(binary trunkline-rdma-core/examples/nic_wire_peer):$nic"; then
    fail wire-guest "the guest did not boot"
    exit 1
fi
run_all
exit "$check_status"
