#!/usr/bin/env bash
# A server is killed under load, and another takes its address: the client's calls end with a status, and it continues with the next
# server. That one has none of the values, so wrong values at the client are ignored.
# carries: trunkline-example-kv/kv-server trunkline-example-kv/kv-client
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

# serve: a key-value server, whose process id goes to $server.
serve() {
    : >/tmp/server
    /lab/bin/kv-server --listen "$address:7471" --allow-unauthenticated --provider require >>/tmp/server 2>&1 &
    server=$!
    until_true 20 grep -q '^listening' /tmp/server
}

killed_under_load() {
    local client count status
    : >"$told"
    serve || return
    /lab/bin/kv-client --server "$address:7471" --address "$address" --allow-unauthenticated --provider require \
        load --for 25 --workers 4 --json >>"$told" 2>&1 &
    client=$!
    if until_true 20 answered 100; then
        kill -KILL "$server"
        { wait "$server"; } 2>/dev/null
        count=$(number_of ok)
        serve && until_true 20 answered "$((count + 100))"
    fi
    status=$?
    wait "$client"
    tail -n 1 "$told"
    kill -TERM "$server" && wait "$server" || status=$?
    # Each of the four workers had one outstanding call.
    ((status == 0 && $(number_of unavailable) >= 4 && $(number_of other) == 0))
}

check death-under-load 90 killed_under_load
exit "$check_status"
