# A network between this machine's software device and a guest's soft RoCE; sourced by the checks of this directory, after
# deploy/checks/common.bash, deploy/checks/programs.bash, image.bash and boot.bash.
#
# The network is a tap interface in its own network namespace: "here" is our end, "there" the guest's. Programs here run on the
# drop-in libraries, or are the project's own.

here=10.78.0.1
there=10.78.0.2
orders_port=9990
there_gid=  # index of the guest's GID
there_said= # file with the last output of the guest's program
guest_boot= # process that boots the guest

# wire_possible NAME: true if this machine can have such a network; otherwise prints the skip of NAME.
wire_possible() {
    local why user=()
    image_possible "$1" && need "$1" unshare util-linux && need "$1" ip iproute2 && need "$1" tc iproute2 || return 1
    if ((EUID != 0)); then user=(--user --map-root-user); fi
    if ! why=$(unshare "${user[@]}" --net bash -c 'ip tuntap add dev wire mode tap' 2>&1); then
        skip "$1" "no tap interface in a network namespace here: $why"
        return 1
    fi
}

# enter_wire_namespace ARGUMENTS...: restarts the check in a separate namespace, where $LAB_WIRE_INSIDE is set.
enter_wire_namespace() {
    local user=()
    if ((EUID != 0)); then user=(--user --map-root-user); fi
    rm -rf "$scratch"
    # A change of user namespace resets the parent-death signal.
    LAB_WIRE_INSIDE=1 exec unshare "${user[@]}" --net -- setpriv --pdeathsig TERM bash "$0" "$@"
}

# make_wire SECONDS [BOOT OPTIONS...]: creates the tap interface and boots the guest. True once the guest waits for commands.
make_wire() {
    local seconds=$1 reply
    shift
    trap 'end_wire; rm -rf "$scratch"' EXIT
    trap 'exit 143' TERM HUP
    trap 'exit 130' INT
    libraries=$PWD/target/dropin
    runtime=$scratch/runtime
    mkdir -m 0700 "$runtime"
    ip link set lo up && ip tuntap add dev wire mode tap && ip address add "$here/24" dev wire && ip link set wire up || return 1
    coproc orders { exec busybox nc -l -p "$orders_port"; }
    # Bash closes them when the process ends.
    exec {orders_in}<&"${orders[0]}" {orders_out}>&"${orders[1]}"
    (boot_guest -t "$seconds" -m 512 -n tap:wire -a "$there/24" -e "WIRE_HOST=$here" -e "WIRE_PORT=$orders_port" -c "$(command -v tc):/usr/bin/tc" \
        "$@" "$lab/wire/agent.bash") >"$scratch/guest.out" 2>&1 &
    guest_boot=$!
    there_said=$scratch/there.out
    if ! read -rt 150 -u "$orders_in" there_gid reply; then
        sed 's/^/    /' "$scratch/guest.out"
        return 1
    fi
}

end_wire() {
    local pid
    if [[ -n $guest_boot ]]; then
        printf 'end\n' >&"$orders_out" 2>/dev/null
        for _ in {1..100}; do
            kill -0 "$guest_boot" 2>/dev/null || break
            tick
        done
        kill -TERM "$guest_boot" 2>/dev/null
        wait "$guest_boot" 2>/dev/null
        guest_boot=
    fi
    for pid in "${running[@]}" "${orders_PID:-}"; do
        if [[ -n $pid ]]; then kill -KILL "$pid" 2>/dev/null; fi
    done
    running=()
}

# Here there is one place for programs, this namespace.
in_place() {
    shift
    exec "$@"
}

# tell SECONDS ORDER...: sends a command to the guest. Returns the status of the answer, and writes its lines to $there_said.
tell() {
    local seconds=$1 status count line
    shift
    printf '%s\n' "$*" >&"$orders_out"
    : >"$there_said"
    if ! read -rt "$seconds" -u "$orders_in" status count; then
        echo "the guest no longer answers" >"$there_said"
        return 125
    fi
    while ((count-- > 0)); do
        IFS= read -rt 20 -u "$orders_in" line || return 125
        printf '%s\n' "$line"
    done >"$there_said"
    return "$status"
}

# serves_here KIND PORT PID: waits until a server here listens; KIND is tcp, cm, or said: a line "listening".
serves_here() {
    local until=$((SECONDS + 15))
    while ((SECONDS < until)); do
        if [[ $1 == said ]]; then
            if grep -qsx listening "$scratch/here.out"; then return 0; fi
        elif listens "$1" "$2" "$3"; then
            return 0
        fi
        if ! kill -0 "$3" 2>/dev/null; then return 1; fi
        tick
    done
    return 1
}

# ended_here PID SECONDS: waits for a program here, and kills it at the time limit. Returns its status.
ended_here() {
    local until=$((SECONDS + $2))
    while ! finished "$1"; do
        if ((SECONDS > until)); then
            stop "$1"
            return 124
        fi
        tick
    done
    return "$status"
}

# meet SIDE KIND SECONDS SERVER CLIENT: runs the server on SIDE (here or there) and the client on the other. Both must end with
# status 0 in that time; otherwise $why is the reason. In the commands %s is the server's address and %p a port.
meet() {
    local side=$1 kind=$2 seconds=$3 port=$((next_port++)) server=$4 client=$5 address=$here
    why=""
    if [[ $side == there ]]; then address=$there; fi
    server=${server//%s/$address} client=${client//%s/$address}
    server=${server//%p/$port} client=${client//%p/$port}
    rm -f "$scratch/here".*
    : >"$there_said"
    "meet_$side"
    look_for_errors "$scratch/here"
}

# The following functions use the variables of meet. They wait for the client first, since a server whose client failed may wait
# indefinitely.
meet_here() {
    local pid
    # shellcheck disable=SC2086 # the commands are lists of words
    start near "$scratch/here" $server
    pid=$started
    if ! serves_here "$kind" "$port" "$pid"; then
        why="the server here did not listen; "
        seconds=0
    elif ! { tell 20 start peer "$seconds" $client && tell $((seconds + 5)) wait peer; }; then
        why="the client there ended with status $?; "
        seconds=3
    fi
    ended_here "$pid" "$seconds" || why+="the server here ended with status $?; "
}

meet_there() {
    local ready=$kind
    if [[ $ready == said ]]; then ready=cm; fi
    tell 20 start peer "$seconds" "$server"
    if ! tell 20 listens "$ready" "$port"; then
        why="the server there did not listen; "
    else
        # shellcheck disable=SC2086
        start near "$scratch/here" $client
        ended_here "$started" "$seconds" || why="the client here ended with status $?; "
    fi
    if [[ -n $why ]]; then tell 20 stop peer; fi
    tell $((seconds + 5)) wait peer || why+="the server there ended with status $?; "
}

# show: prints the failures here and the last output of both sides.
show() {
    grep -h '^fail' "$scratch/here.out" "$scratch/here.err" 2>/dev/null | sed 's/^/    here:  /'
    tail -n 12 "$scratch/here.out" "$scratch/here.err" 2>/dev/null | sed 's/^/    here:  /'
    tail -n 12 "$there_said" | sed 's/^/    there: /'
}
