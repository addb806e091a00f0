# Unmodified verbs programs on the drop-in libraries: namespaces to run them in, and pairs of them that communicate; sourced by the
# checks that use them, after common.bash.
#
# "near" and "far" are two network namespaces, connected by a veth pair, with a separate temporary directory. A pair runs on one
# address (both in "near") or across. The programs run as an ordinary user: the caller, or `nobody` if the caller is root.

near_address=10.77.0.1
far_address=10.77.0.2
# Inside the namespaces; the libraries are copied there, so that any user can read them, wherever the checkout is.
libraries=/tmp/dropin
runtime=/tmp/trunkline
next_port=20000
declare -A holder=() # process that keeps each namespace alive
attempts=1           # attempts of an exchange; code that sets more gives the reason
again_for=           # pattern: only failures that match are tried again
attempt=1            # number of the present attempt
running=()           # programs that have not been waited for
results=()           # "name<tab>verdict<tab>seconds"
drop=()              # command that drops root
faults=              # TRUNKLINE_FAULTS of the next programs; %a in it is the number of the attempt
declare -A endings=() # reason and last output of each failed run
priority=()          # command that raises the priority, if permitted
wrapper=()           # prefix of a program, for example valgrind
client_says=         # pattern that a line of each client's output must match
exec {ticks}<> <(:)

# tick: waits 20 ms without starting a process.
tick() { read -rt 0.02 -u "$ticks" || true; }

# Checks the tools for the namespaces; prints the skip and returns 1 when one is missing.
places_possible() {
    need "$1" ip iproute2 && need "$1" nsenter util-linux || return 1
    local why user=()
    if ((EUID != 0)); then user=(--user --map-root-user); fi
    if ! why=$(unshare "${user[@]}" --net --mount true 2>&1); then
        skip "$1" "no network and mount namespaces here: $why"
        return 1
    fi
}

# enter_user_namespace ARGUMENTS...: if the caller is an ordinary user, restarts the check as root of a new user namespace.
enter_user_namespace() {
    if ((EUID != 0)); then
        rm -rf "$scratch"
        exec unshare --user --map-root-user -- "deploy/checks/${0##*/}" "$@"
    fi
    # Root of the whole machine drops its privileges; root of a user namespace is an ordinary user outside.
    if [[ $(awk '{ print $3; exit }' /proc/self/uid_map) == 4294967295 ]]; then
        drop=(setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs)
    fi
}

# in_place PLACE COMMAND...: executes the command in that namespace, replacing the process.
in_place() {
    local place=$1
    shift
    exec nsenter --target "${holder[$place]}" --net --mount "$@"
}

hold() {
    local place=$1 line
    shift
    exec {ready}< <("$@" bash -c 'echo $$; exec sleep 3000')
    read -rt 20 -u "$ready" line || return 1
    exec {ready}<&-
    holder[$place]=$line
}

make_places() {
    trap 'end_places; rm -rf "$scratch"' EXIT
    # Without these, bash cleans up at a signal and may then go on.
    trap 'exit 143' TERM HUP
    trap 'exit 130' INT
    hold near unshare --net --mount --propagation private || return 1
    (in_place near mount -t tmpfs -o mode=1777 tmpfs /tmp) || return 1
    hold far nsenter --target "${holder[near]}" --mount unshare --net || return 1
    local setup="ip link set lo up && ip link add near type veth peer name far netns ${holder[far]} &&
        ip addr add $near_address/24 dev near && ip link set near up"
    (in_place near bash -c "$setup") || return 1
    setup="ip link set lo up && ip addr add $far_address/24 dev far && ip link set far up"
    (in_place far bash -c "$setup") || return 1
    # A link-local IPv6 address is tentative at first and can't be bound; no check may depend on when that ends.
    local place
    for place in near far; do
        for _ in {1..250}; do
            if [[ -z $(in_place "$place" ip -6 addr show tentative 2>/dev/null) ]]; then break; fi
            tick
        done
    done
    tar -C target/dropin -c . | (in_place near bash -c "mkdir -p $libraries && tar -x --no-same-owner -C $libraries &&
        chmod -R a+rX $libraries && mkdir -m 0700 $runtime && { ((EUID != 0)) || [[ '${drop[*]}' == '' ]] || chown 65534:65534 $runtime; }")
}

# enter_places CHECK ARGUMENTS...: builds the libraries and creates the namespaces with them, or ends the check.
enter_places() {
    local check=$1
    shift
    if ! drop_in; then
        fail "$check-build" "the drop-in libraries do not build"
        exit 1
    fi
    enter_user_namespace "$@"
    if ! make_places; then
        fail "$check-places" "the network namespaces could not be made"
        exit 1
    fi
}

# All processes in the namespaces end with them, including those that programs have started.
end_places() {
    local pid place namespaces=" " process
    for pid in "${running[@]}"; do kill -KILL "$pid" 2>/dev/null; done
    for place in "${!holder[@]}"; do namespaces+="$(readlink "/proc/${holder[$place]}/ns/net") "; done
    for process in /proc/[0-9]*; do
        if [[ $namespaces == *" $(readlink "$process/ns/net" 2>/dev/null) "* ]]; then kill -KILL "${process#/proc/}" 2>/dev/null; fi
    done
    running=()
    holder=()
}

# start PLACE OUTPUT COMMAND...: a program in the background, as an ordinary user on the drop-in libraries; its id is in $started.
start() {
    local place=$1 output=$2
    shift 2
    (in_place "$place" "${priority[@]}" "${drop[@]}" env LD_LIBRARY_PATH="$libraries" TRUNKLINE_RUNTIME_DIR="$runtime" TRUNKLINE_FAULTS="${faults//%a/$attempt}" \
        TRUNKLINE_LINK="${TRUNKLINE_LINK-}" HOME=/tmp \
        "${wrapper[@]}" "$@") >"$output.out" 2>"$output.err" {ticks}<&- &
    started=$!
    running+=("$started")
}

# finished PID: true if the process has ended. Sets $status.
finished() {
    if kill -0 "$1" 2>/dev/null; then return 1; fi
    { wait "$1"; } 2>/dev/null # bash would report every stopped process
    status=$?
    local pid left=()
    for pid in "${running[@]}"; do if [[ $pid != "$1" ]]; then left+=("$pid"); fi; done
    running=("${left[@]}")
}

stop() {
    kill -KILL "$1" 2>/dev/null
    while ! finished "$1"; do tick; done
}

# listens READY PORT PID OUTPUT: true if a client may start. With READY "now" the client waits by itself. With "says PATTERN"
# the server's output decides. A program of librdmacm listens if its network namespace holds UDP port 4791 and its main thread
# sleeps, three times in a row.
listens() {
    local hex count
    case $1 in
    now) ;;
    says\ *) grep -qsE "${1#says }" "$4" ;;
    tcp)
        printf -v hex %04X "$2"
        grep -qsE "^ *[0-9]+: [0-9A-F]+:$hex [0-9A-F:]+ 0A " "/proc/$3/net/tcp" "/proc/$3/net/tcp6"
        ;;
    cm)
        for count in 1 2 3; do
            grep -qsE '^ *[0-9]+: [0-9A-F]+:12B7 ' "/proc/$3/net/udp" "/proc/$3/net/udp6" || return 1
            grep -qs '^State:.*S' "/proc/$3/status" || return 1
            if ((count < 3)); then tick; fi
        done
        ;;
    esac
}

# exchange NAME READY WHERE SECONDS SERVER CLIENT [COUNT]: runs a server and COUNT clients, which must all end with status 0 in
# that time, without unexpected output on stderr. READY is tcp, cm, "says PATTERN" or now, WHERE one or two. In the commands %p is
# a port and %s the server's address.
exchange() {
    local name=$1 server=$5 client=$6 attempt why="" began=$SECONDS failed=""
    if ! chosen "$name"; then return; fi
    if ((listing)); then
        printf '%-44s %s | %s\n' "$name" "$server" "$client"
        return
    fi
    for ((attempt = 1; attempt <= attempts; attempt++)); do
        if ((SECONDS > time_up)); then
            why="no time left"
            break
        fi
        try "${@:2}"
        if [[ -z $why ]]; then break; fi
        failed=$(last_output)
        if ((attempt == attempts)) || [[ ! $why =~ $again_for ]]; then break; fi
        printf 'again %s: %s\n%s\n' "$name" "$why" "$failed"
    done
    record "$name" "$why" $((SECONDS - began)) "$failed"
}

# last_output: prints the last output of each program of the last run.
last_output() {
    local file
    for file in "$scratch/run"*.out "$scratch/run"*.err; do
        if [[ -s $file ]]; then tail -n 5 "$file" | tr -d '\r' | sed "s/^/    ${file##*/run.}: /"; fi
    done
}

# Runs a single attempt. Sets $why to the reason of a failure.
try() {
    local ready=$1 where=$2 limit=$3 server=$4 client=$5 clients=${6:-1}
    local port=$((next_port++)) began=$SECONDS until at=near address=$near_address pids=() output=$scratch/run pid index
    why=""
    if [[ $where == two ]]; then at=far address=$far_address; fi
    server=${server//%p/$port} client=${client//%p/$port}
    server=${server//%s/$address} client=${client//%s/$address}
    rm -f "$output".*
    until=$((SECONDS + limit))
    # shellcheck disable=SC2086 # the commands are lists of words
    start "$at" "$output.server" $server
    pids=("$started")
    while ! listens "$ready" "$port" "${pids[0]}" "$output.server.out"; do
        if finished "${pids[0]}"; then why="the server ended with status $status before a client came; " && break; fi
        if ((SECONDS > until)); then why="the server did not listen within $limit s; " && stop "${pids[0]}" && break; fi
        tick
    done
    if [[ -z $why ]]; then
        for ((index = 0; index < clients; index++)); do
            # shellcheck disable=SC2086
            start near "$output.client$index" $client
            pids+=("$started")
        done
        while ((${#pids[@]} > 0)); do
            for index in "${!pids[@]}"; do
                pid=${pids[index]}
                if finished "$pid"; then
                    unset "pids[$index]"
                    if ((status == 0)); then continue; fi
                    why+="process $index ended with status $status; "
                    # The remaining programs may wait for it indefinitely.
                    if ((until > SECONDS + 3)); then until=$((SECONDS + 3)); fi
                elif ((SECONDS > until)); then
                    why+="process $index still ran after $((SECONDS - began)) s; "
                    stop "$pid"
                    unset "pids[$index]"
                fi
            done
            tick
        done
    fi
    look_for_errors "$output"
    if [[ -n $client_says && -z $why ]]; then
        for ((index = 0; index < clients; index++)); do
            grep -qE "$client_says" "$output.client$index.out" || why+="client $index did not print $client_says; "
        done
    fi
}

# single NAME SECONDS COMMAND: runs one program in "near". Its output stays in $scratch/run.out.
single() {
    local name=$1 limit=$2 until why=""
    shift 2
    if ! chosen "$name"; then return 1; fi
    if ((listing)); then
        printf '%-44s %s\n' "$name" "$*"
        return 1
    fi
    until=$((SECONDS + limit))
    rm -f "$scratch/run".*
    start near "$scratch/run" "$@"
    while ! finished "$started"; do
        if ((SECONDS > until)); then why="still ran after $limit s; " && stop "$started" && status=0 && break; fi
        tick
    done
    if ((status != 0)); then why+="ended with status $status; "; fi
    look_for_errors "$scratch/run"
    record "$name" "$why" 0 "${why:+$(last_output)}"
}

# Output on stderr that is not an error.
#   rping reports the end of each connection and its state. perftest identifies NICs by vendor id, and reports an unrecognised
#   one where it would choose an inline size for READ and atomics, which have none. If the machine is too busy when perftest
#   calibrates its clock, it reports that and measures again.
expected_errors='^Device not recognized to implement inline feature\. Disabling it$|^(server|client) DISCONNECT EVENT\.\.\.$|^wait for RDMA_READ_ADV state (10|9)$|^Correlation coefficient r\^2: [0-9.e+-]+ < 0\.9$'

look_for_errors() {
    local unexpected
    unexpected=$(cat "$1"*.err 2>/dev/null | grep -vE "$expected_errors|^$" | head -n 5)
    if [[ -n $unexpected ]]; then why+="stderr: $(tr '\n' ';' <<<"$unexpected")"; fi
}

# record_status NAME STATUS WHY: records the status of the preceding command.
record_status() {
    if (($2 == 0)); then record "$1" "" 0; else record "$1" "$3" 0; fi
}

# record NAME WHY SECONDS [LAST OUTPUT]: records a failure with that reason, or a pass if WHY is empty.
record() {
    if [[ -z $2 ]]; then
        pass "$1"
        results+=("$1"$'\t'pass$'\t'"$3")
    else
        fail "$1" "$2"
        endings[$1]="    $2"$'\n'"${4-}"
        if [[ -n ${4-} ]]; then echo "$4"; fi
        results+=("$1"$'\t'FAIL$'\t'"$3")
    fi
}

# The arguments of a check: --list prints the runs; anything else is a pattern that selects runs.
listing=0
pattern=
choose() {
    local argument
    for argument in "$@"; do
        case $argument in
        --list) listing=1 ;;
        *) pattern=$argument ;;
        esac
    done
}
chosen() { [[ -z $pattern || $1 =~ $pattern ]]; }

table() {
    if ((${#results[@]} == 0)); then return; fi
    printf '\n%s\n' "== programs: ${#results[@]}"
    local result name verdict seconds
    for result in "${results[@]}"; do
        IFS=$'\t' read -r name verdict seconds <<<"$result"
        printf '  %-44s %-5s %4d s\n' "$name" "$verdict" "$seconds"
        # Repeat the failures at the end of the log, where they are easy to find.
        if [[ $verdict == FAIL ]]; then echo "${endings[$name]}"; fi
    done
}
