# Three hosts, which are network namespaces: a caller and a server, with a router between them. Sourced after common.bash by checks that
# define `rows`, which runs among the hosts, and call prepare_hosts and between_hosts. Addresses are 10.97.1.1 and fd97:1::1 for
# the caller, 10.97.2.1 and fd97:2::1 for the server.

# prepare_hosts CHECK: builds the programs and checks the tools, or ends the check.
prepare_hosts() {
    if ! build; then
        fail "$1-build" "the programs do not build"
        exit 1
    fi
    need "$1" unshare util-linux && need "$1" ip iproute2 || exit 0
    chmod 711 "$scratch"
    umask 077
    export TMPDIR=$scratch
}

# between_hosts CHECK SECONDS: runs `rows` in namespaces with these hosts, with all functions of the check.
between_hosts() {
    local namespace=(unshare --net --mount --pid --fork --kill-child) functions
    if ((EUID != 0)); then namespace+=(--user --map-root-user); fi
    mapfile -t functions < <(compgen -A function)
    export -f "${functions[@]}"
    timeout "$2" "${namespace[@]}" bash -c inside
    case $? in
    0) ;;
    3)
        skip "$1" "links between namespaces cannot be made here"
        exit 0
        ;;
    124) fail "$1" "not done after $2 s" ;;
    *) check_status=1 ;;
    esac
}

inside() {
    : >"$TMPDIR/server.log"
    hosts || return 3
    local as=() running=()
    check_status=0
    rows
    return "$check_status"
}

# on HOST COMMAND...: runs a command on one of the hosts, with its runtime directory.
on() {
    local host=$1
    shift
    TRUNKLINE_RUNTIME_DIR=${directory-$TMPDIR/$host} nsenter --net="/run/netns/$host" "$@"
}

# hosts: makes the caller, the router and the server, in this mount namespace. Kernels limit ICMP errors, which here would
# leave those of one row without an answer in the next.
hosts() {
    mount -t proc none /proc && mount -t tmpfs none /run && mkdir -p /run/netns /run/programs &&
        mount --bind "$programs" /run/programs || return 3
    local host link number address
    for host in caller router server; do
        ip netns add "$host" && mkdir "$TMPDIR/$host" && on "$host" ip link set lo up || return 3
        on "$host" sysctl -qw net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0 net.ipv4.ip_forward=1 \
            net.ipv6.conf.all.forwarding=1 || return 3
    done
    ip -n caller link add wire type veth peer name near netns router &&
        ip -n server link add wire type veth peer name far netns router || return 3
    for host in "caller wire 1.1" "server wire 2.1" "router near 1.254" "router far 2.254"; do
        read -r host link address <<<"$host"
        ip -n "$host" address add "10.97.$address/24" dev "$link" &&
            ip -n "$host" address add "fd97:${address/./::}/64" dev "$link" nodad &&
            ip -n "$host" link set "$link" up || return 3
    done
    for host in "caller 1" "server 2"; do
        read -r host number <<<"$host"
        ip -n "$host" route add default via "10.97.$number.254" && ip -n "$host" route add default via "fd97:$number::254" || return 3
    done
}

# start HOST LOG OPTION...: starts `program`, by default the example `causes`, under the command `as`, and waits until it
# prints "ready" or "listening". `stop` ends all that are running.
start() {
    local host=$1 log=$TMPDIR/$2.log
    shift 2
    : >"$TMPDIR/out" && : >"$log"
    TRUNKLINE_RUNTIME_DIR=${directory-$TMPDIR/$host} nsenter --net="/run/netns/$host" "${as[@]}" \
        "/run/programs/${program-examples/causes}" "$@" >"$TMPDIR/out" 2>>"$log" &
    running+=($!)
    until grep -qE '^(ready|listening)' "$TMPDIR/out"; do
        if ! kill -0 $! 2>/dev/null; then
            echo "not started: $(tail -n 1 "$log")"
            return 1
        fi
        sleep 0.05
    done
}
stop() {
    if ((${#running[@]})); then kill "${running[@]}" && wait "${running[@]}"; fi 2>/dev/null
    running=()
    : >"$TMPDIR/server.log"
}

# last_log FILE: prints the last warning or error of a log without its time, or the last line.
last_log() { { grep -E ' (WARN|ERROR) ' "$1" || cat "$1"; } | tail -n 1 | sed -E 's/^[0-9T:.-]+Z? +//; s/^$/-/'; }
