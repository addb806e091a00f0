# Functions shared by the groups of checks that run inside a guest; each group sources this first.
#
# A group is a file NN-name.sh. Every check in it is a line `check NAME SECONDS COMMAND...`, so that `bash GROUP --list` prints the
# names on any machine, without running anything; run.sh expects a verdict for each of them. LAB_PATTERN chooses by name.
set -uo pipefail

check_status=0 # for the end of the group: exit "$check_status"
listing=0
if [[ ${1:-} == --list ]]; then listing=1; fi
device=rxe0
address=${LAB_ADDRESS:-10.77.0.1/24}
address=${address%/*}
told=/tmp/load # the lines of a client under load
exec {ticks}<> <(:)

# tick: 50 ms, without a process.
tick() { read -rt 0.05 -u "$ticks" || true; }

pass() { echo "pass $1"; }
skip() { echo "skip $1: $2"; }
fail() {
    echo "fail $1: $2"
    # shellcheck disable=SC2034 # the group ends with it
    check_status=1
}

# prefix TEXT: line by line, as they come.
prefix() { awk -v text="$1" '{ print text $0; fflush() }'; }

# check NAME SECONDS COMMAND...: the command, a program or a function, has to end with status 0 in that time, and so have all processes that
# it started. Its output is shown as it comes.
check() {
    local name=$1 seconds=$2 job group watchdog status=1 began=$SECONDS
    shift 2
    if [[ ! $name =~ ${LAB_PATTERN:-} ]]; then return; fi
    if ((listing)); then
        echo "$name"
        return
    fi
    echo "$name: $*"
    set -m # a process group for each job, so that all of it can be ended
    {
        ("$@")
        echo $? >/tmp/status
    } </dev/null 2>&1 | prefix '    ' &
    job=$! group=$(jobs -p %+)
    { sleep "$seconds" && : >/tmp/late && kill -KILL -- "-$group"; } >/dev/null 2>&1 &
    watchdog=$!
    set +m
    { wait "$job"; } 2>/dev/null
    kill -KILL -- "-$watchdog" 2>/dev/null
    { wait "$watchdog"; } 2>/dev/null
    if [[ -s /tmp/status ]]; then read -r status </tmp/status; fi
    if [[ -e /tmp/late ]]; then
        fail "$name" "still running after $((SECONDS - began)) s"
    elif ((status == 0)); then
        pass "$name"
    else
        fail "$name" "status $status"
    fi
    rm -f /tmp/status /tmp/late
}

# until_true SECONDS COMMAND...: waits until the command succeeds; false when the time is up.
until_true() {
    local until=$((SECONDS + $1))
    shift
    until "$@"; do
        if ((SECONDS > until)); then
            echo "timed out waiting for: $*"
            return 1
        fi
        tick
    done
}

# A soft RoCE device on eth0, ready when its table has the GID of the address, whose index goes to $gid.
device_up() {
    rdma link add "$device" type rxe netdev eth0 && until_true 20 find_gid
}
device_down() { rdma link delete "$device"; }

find_gid() {
    local octets table=/sys/class/infiniband/$device/ports/1
    IFS=. read -ra octets <<<"$address"
    local wanted
    printf -v wanted '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' "${octets[@]}"
    for ((gid = 0; gid < 16; gid++)); do
        if [[ $(cat "$table/gids/$gid" 2>/dev/null) == "$wanted" && $(cat "$table/gid_attrs/types/$gid" 2>/dev/null) == "RoCE v2" ]]; then return 0; fi
    done
    return 1
}

# listens tcp PORT, or listens cm PORT: whether a client may start now.
listens() {
    local hex
    case $1 in
    tcp)
        printf -v hex %04X "$2"
        grep -qsE "^ *[0-9]+: [0-9A-F]+:$hex [0-9A-F:]+ 0A " /proc/net/tcp /proc/net/tcp6
        ;;
    cm) rdma resource show cm_id | grep -qE "state LISTEN .*[]:.]$2( |\$)" ;;
    esac
}

# exchange READY PORT SERVER CLIENT: a server, and once it listens a client; both have to end with status 0.
exchange() {
    local server status
    # shellcheck disable=SC2086 # the commands are lists of words
    $3 > >(prefix 'server: ') 2>&1 &
    server=$!
    if ! until_true 15 listens "$1" "$2"; then
        kill -KILL "$server"
        return 1
    fi
    # shellcheck disable=SC2086
    $4 2>&1 | prefix 'client: '
    status=$?
    # It may wait for a client indefinitely.
    if ((status != 0)); then kill -KILL "$server"; fi
    wait "$server" && return "$status"
}

# number_of NAME: a number in the last line of the client under load.
number_of() { tail -n 1 "$told" | sed -nE "s/.*\"$1\":([0-9]+)[,}].*/\1/p"; }

# answered COUNT: whether more than COUNT of its calls were answered.
answered() {
    local count
    count=$(number_of ok)
    ((${count:-0} > $1))
}

if ((!listing)) && [[ ! -e /sys/class/infiniband/$device ]]; then device_up || echo "no device $device"; fi
if ((!listing)); then find_gid || true; fi
