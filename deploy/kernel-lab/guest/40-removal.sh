#!/usr/bin/env bash
# The device is removed while a server and a client are under load, and comes back: `rdma link delete` returns only when
# every process has closed the device, so it shows that ours do. Acknowledged values must stay valid.
# carries: trunkline-example-kv/kv-server trunkline-example-kv/kv-client
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

most_ms=5000 # until the command has to return
own=(--allow-unauthenticated --provider require)

# serve: a key-value server, whose process id goes to $server.
serve() {
    : >/tmp/server
    /lab/bin/kv-server --listen "$address:7471" --pollers 2 "${own[@]}" >>/tmp/server 2>&1 &
    server=$!
    until_true 20 grep -q '^listening' /tmp/server
}

# load SECONDS: a client under load, whose process id goes to $client and whose lines go to $told.
load() {
    : >"$told"
    /lab/bin/kv-client --server "$address:7471" --address "$address" "${own[@]}" load --for "$1" --workers 4 --json >>"$told" 2>&1 &
    client=$!
}

away() { tail -n 1 "$told" | grep -q '"device":"away"'; }

# take_away: removes the device, which must succeed in time.
take_away() {
    local begin=${EPOCHREALTIME/./} took
    rdma link delete "$device" || return
    took=$(((${EPOCHREALTIME/./} - begin) / 1000))
    echo "rdma link delete returned after $took ms"
    ((took <= most_ms))
}

# stop: stops both programs; the client exits by itself, with status 0 if no value was wrong.
stop() {
    local status=0
    if [[ -n ${client:-} ]]; then
        wait "$client" || status=$?
        tail -n 2 "$told"
    fi
    kill -TERM "$server" && wait "$server" || status=$?
    prefix 'server: ' </tmp/server
    return "$status"
}

# give_up: shows the progress so far.
give_up() {
    tail -n 3 "$told" 2>/dev/null
    prefix 'server: ' </tmp/server
    if [[ ! -e /sys/class/infiniband/$device ]]; then device_up; fi
    return 1
}

under_load() {
    local count
    serve && load 35 && until_true 30 answered 100 || give_up || return
    for _ in 1 2; do
        take_away || give_up || return
        until_true 10 away || give_up || return
        count=$(number_of ok)
        device_up && until_true 30 answered "$((count + 100))" || give_up || return
    done
    stop || return
    (($(number_of incarnations) == 3 && $(number_of wrong) == 0 && $(number_of unavailable) > 0))
}

# A server without clients closes the device too, and is reachable afterwards.
idle() {
    client=
    serve && take_away && device_up || give_up || return
    load 6 && stop
}

# A process that exits while the device is removed must not block its return.
end_while_away() {
    client=
    serve && take_away || give_up || return
    kill -TERM "$server" && wait "$server" || give_up || return
    device_up && serve && load 4 && stop
}

check removal-under-load 150 under_load
check removal-idle 60 idle
check removal-end-while-away 60 end_while_away
exit "$check_status"
