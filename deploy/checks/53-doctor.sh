#!/usr/bin/env bash
# Faults of a host, each planted alone in namespaces: `trunkctl doctor` must name each with its remedy, and none on a host
# without them.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

if ! build; then
    fail doctor-build "the programs do not build"
    exit 1
fi
need doctor unshare util-linux && need doctor ip iproute2 && need doctor tc iproute2 || exit 0
chmod 711 "$scratch"
export programs scratch

# doctor: runs it, with one line for each finding in `found`.
doctor() {
    TRUNKLINE_RUNTIME_DIR=${directory-$scratch/own} "${as[@]}" timeout 60 "$programs/trunkctl" doctor "$@" >"$scratch/found" 2>&1
}

# names FAULT SEVERITY PATTERN [OPTION...]: judges that a finding of that severity, with its remedy, is like the pattern.
names() {
    local fault=$1 pattern="^$2 +$3"
    shift 3
    doctor "$@"
    grep -qE -- "$pattern" "$scratch/found"
    verdict "doctor-$fault" $? "expected a line like: $pattern; found: $(grep -vE '^ok ' "$scratch/found" | tr '\n' '|')"
}

# put FILE TEXT: makes a file of /proc or /sys have this text.
put() {
    echo "$2" >"$scratch/put" && cp "$scratch/put" "$scratch/put.$((++puts))" && mount --bind "$scratch/put.$puts" "$1"
}

# host: a host without faults: a network with a second one.
host() {
    mount -t proc none /proc && ip link set lo up && ip link add wire type veth peer name other && ip link set other up &&
        ip address add 10.98.0.1/24 dev wire && ip link set wire up || return 3
    mkdir -p -m 0700 "$scratch/own"
    ulimit -n 4096
    puts=0 as=()
    check_status=0
    "fault_$1" || return
    return "$check_status"
}

fault_none() {
    doctor
    verdict doctor-none $? "a host without faults has some: $(grep -vE '^ok ' "$scratch/found" | tr '\n' '|')"
}
fault_memlock() {
    ulimit -l 64
    names memlock ok 'locked memory .*65 kB; .*for a NIC: ulimit -l unlimited' --no-calls
}
fault_descriptors() {
    ulimit -n 40
    names descriptors FAILURE 'descriptors .*: 40; a node needs .*remedy: raise ulimit -n' --no-calls
}
fault_mode() {
    chmod 755 "$scratch/own"
    names mode FAILURE 'runtime directory: .*open to other users.*remedy: ' --no-calls
    chmod 700 "$scratch/own"
}
fault_read_only() {
    mount -t tmpfs -o ro,mode=700 none "$scratch/own" || return 3
    names read_only FAILURE 'runtime directory: .*Read-only.*remedy: name another' --no-calls
}
fault_capture() {
    TRUNKLINE_PCAP=$scratch/absent/a.pcap names capture FAILURE 'environment: .*capture.*remedy: name another file' --no-calls
}
fault_buffer() {
    put /proc/sys/net/core/rmem_max 65536 || return 3
    names buffer warning 'UDP receive buffer: net.core.rmem_max is 65536.*remedy: sysctl -w net.core.rmem_max=' --no-calls
}
fault_address() {
    ip link del wire
    names address warning 'addresses: loopback only: .*remedy: give an interface that is up an address' --no-calls
}
fault_rp_filter() {
    ip link add more type veth peer name last && ip address add 10.98.1.1/24 dev more && ip link set more up &&
        sysctl -qw net.ipv4.conf.wire.rp_filter=1 || return 3
    names rp_filter warning 'rp_filter of wire: strict.*remedy: sysctl -w net.ipv4.conf.wire.rp_filter=2' --no-calls
}
fault_cgroup() {
    mount -t tmpfs none /sys/fs/cgroup && put /proc/self/cgroup 0::/ || return 3
    echo 536870912 >/sys/fs/cgroup/memory.max && echo 1048576 >/sys/fs/cgroup/memory.current
    names cgroup warning 'memory: .*remedy: ' --no-calls
}
hold() {
    "${holds[@]}" "$programs/examples/causes" "$@" >"$scratch/holder" 2>&1 &
    for _ in $(seq 100); do
        if grep -q '^ready' "$scratch/holder"; then return 0; fi
        sleep 0.05
    done
    return 3
}
fault_user() {
    setpriv --reuid=65534 --regid=65534 --clear-groups true 2>/dev/null || return 3
    local holds=()
    hold hold 10.98.0.1 || return 3
    mkdir -m 0700 "$scratch/nobody" && chown 65534 "$scratch/nobody"
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    directory=$scratch/nobody names user FAILURE 'UDP port 4791 at 10.98.0.1: .*user 0.*remedy: ' --no-calls
}
fault_directory() {
    mkdir -m 0700 "$scratch/other"
    local holds=(env TRUNKLINE_RUNTIME_DIR="$scratch/other")
    hold serve 10.98.0.1 || return 3
    names directory FAILURE 'UDP port 4791 at 10.98.0.1: .*/other.*remedy: .*TRUNKLINE_RUNTIME_DIR' --no-calls
}
fault_port() {
    local tc=(tc)
    "${tc[@]}" qdisc add dev lo root handle 1: htb && "${tc[@]}" class add dev lo parent 1: classid 1:1 htb rate 1mbit &&
        "${tc[@]}" qdisc add dev lo parent 1:1 pfifo limit 0 &&
        "${tc[@]}" filter add dev lo parent 1: protocol ip u32 match ip dport 4791 0xffff flowid 1:1 || return 3
    names port FAILURE 'loopback call by UDP: .*remedy: .*4791'
}
export -f doctor names put host hold verdict pass fail skip $(compgen -A function fault_)

namespace=(unshare --net --mount --pid --fork --kill-child)
if ((EUID != 0)); then namespace+=(--user --map-root-user); fi
for fault in none memlock descriptors mode read_only capture buffer address rp_filter cgroup user directory port; do
    timeout 120 "${namespace[@]}" bash -c "host $fault" 2>"$scratch/err"
    case $? in
    0) ;;
    3) skip "doctor-$fault" "it cannot be planted here: $(tail -n 1 "$scratch/err")" ;;
    *) check_status=1 ;;
    esac
done
exit "$check_status"
