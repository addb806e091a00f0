#!/usr/bin/env bash
# The main job and the examples on the kernel's soft RoCE: two processes of the project in one guest, each on the device through
# libibverbs and librdmacm. Times are printed but not checked, because under emulation they are meaningless.
#
# carries: trunkline-demo/trunkline-demo
# carries: trunkline-example-kv/kv-server trunkline-example-kv/kv-client
# carries: trunkline-example-feed/feed-serve trunkline-example-feed/feed
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

# The software device must not be used instead.
export TRUNKLINE_PROVIDER=require

# Empty, one byte, one packet, many packets, and READs of some pieces.
tree() {
    mkdir -p /tmp/tree/folder
    : >/tmp/tree/empty
    printf x >/tmp/tree/one-byte
    head -c 1000 /dev/urandom >/tmp/tree/folder/one-packet
    head -c 16000 /dev/urandom >/tmp/tree/folder/segments
    head -c 300000 /dev/urandom >/tmp/tree/one-read
    head -c 3000000 /dev/urandom >/tmp/tree/reads
}

# demo ARGUMENTS...: runs both processes; then the report must contain these pairs.
demo() {
    local report=/tmp/report.json pair
    rm -rf /tmp/tree "$report"
    tree
    trunkline-demo --server-address "$address" --client-address "$address" --allow-unauthenticated --tree /tmp/tree --json "$report" "$@" || return
    for pair in '"provider": "rdma-core"' '"files": 6' '"bytes": 3317001' '"mismatches": 0'; do
        grep -q "$pair" "$report" || { echo "the report does not contain $pair" && return 1; }
    done
}

# with_server PROGRAM ARGUMENTS... -- COMMAND...: the command, while the server listens; it is ended like a service.
with_server() {
    local server status command=()
    while [[ $1 != -- ]]; do
        command+=("$1")
        shift
    done
    shift
    # Emptied here and not only by the server's own redirection, which comes later: the lines of the server before it would do.
    : >/tmp/server.out
    "${command[@]}" >/tmp/server.out 2>&1 &
    server=$!
    until_true 30 listening_or_gone "$server" && grep -q '^listening ' /tmp/server.out && "$@"
    status=$?
    kill -TERM "$server" 2>/dev/null
    wait "$server" || { echo "the server ended with status $?" && status=1; }
    prefix 'server: ' </tmp/server.out
    return "$status"
}

listening_or_gone() { grep -q '^listening ' /tmp/server.out || ! kill -0 "$1" 2>/dev/null; }

kv() { kv-client --server "$address:7471" --address "$address" --allow-unauthenticated --timeout-ms 20000 "$@"; }
kv_requests() {
    head -c 200000 /dev/urandom >/tmp/value
    kv put greeting hello && [[ $(kv get greeting) == hello ]] || return
    kv put large </tmp/value && kv get large | cmp - /tmp/value || return
    [[ $(kv list) == $'greeting\nlarge' ]] && kv delete greeting || return
    kv get greeting
    (($? == 1))
}

feed_requests() {
    local client=(feed --server "$address:7473" --address "$address" --allow-unauthenticated --timeout-ms 20000)
    seq 1 1000 | "${client[@]}" emit numbers && [[ $("${client[@]}" totals) == "numbers 1000 0" ]]
}

PATH=$PATH:/lab/bin
check demo 120 demo --calls 500
check demo-pollers 120 demo --calls 500 --pollers 2 --in-flight 4
check kv 60 with_server kv-server --listen "$address:7471" --allow-unauthenticated -- kv_requests
check feed 60 with_server feed-serve --listen "$address:7473" --allow-unauthenticated -- feed_requests
exit "$check_status"
