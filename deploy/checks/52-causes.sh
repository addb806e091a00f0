#!/usr/bin/env bash
# Causes for which no session can be made, each between hosts that are network namespaces with a router between them.
# `trunkctl ping` must name each cause and its remedy, in a text that no other cause has. Prints a table: cause, how it was
# made, last step and text of ping, status of a call, and what the logs of both sides say.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"
# shellcheck source-path=SCRIPTDIR source=hosts.bash
. deploy/checks/hosts.bash

prepare_hosts causes

# serve OPTION...: starts the server; at 10.97.2.1 unless the first option is an address.
serve() {
    local address=10.97.2.1
    if [[ ${1-} == *:* ]]; then address=$1 && shift; fi
    start server server serve "$address" "$@"
}

# field NAME: prints a field of ping's JSON.
field() { sed -nE "s/.*\"$1\":\"(([^\"\\\\]|\\\\.)*)\".*/\1/p" "$TMPDIR/ping" | sed 's/\\"/"/g'; }

# row CAUSE HOW STEP TEXT STATUS [OPTION...]: runs ping, then a call, and judges step and text of ping, and the status. TEXT is
# an extended regular expression. The options are those of both: the identity. `to` is the server, `as` a command that both run under.
row() {
    local cause=$1 how=$2 step=$3 text=$4 status=$5 got because identity=()
    shift 5
    local server=${to-10.97.2.1:7000} own=10.97.1.1 prefix options=("$@")
    if [[ $server == \[* ]]; then own=fd97:1::1; fi
    while (($#)); do
        case $1 in
        --identity) prefix=$2 && identity+=(--identity "$prefix.pem" --key "$prefix.key") ;;
        *) identity+=("$1" "$2") ;;
        esac
        shift 2
    done
    : >"$TMPDIR/server.log"
    on caller "${as[@]}" /run/programs/trunkctl ping --json -c 1 --timeout-ms 20000 "${identity[@]}" "$server" \
        >"$TMPDIR/ping" 2>"$TMPDIR/ping.log"
    local exit=$?
    got=$(field failed_after) because=$(field cause)
    TRUNKLINE_ADDRESS=$own on caller "${as[@]}" timeout 30 /run/programs/examples/causes call "$server" "${options[@]}" >"$TMPDIR/call" 2>"$TMPDIR/call.log"
    local called
    called=$(head -n 1 "$TMPDIR/call")
    {
        echo "$cause"
        echo "    made by     $how"
        echo "    ping        exit $exit, after \"$got\""
        echo "    cause       $because"
        echo "    status      $called"
        echo "    caller log  $(last_log "$TMPDIR/call.log")"
        echo "    server log  $(last_log "$TMPDIR/server.log")"
    } | tee -a "$TMPDIR/table"
    # Addresses, process ids and times differ between rows of one cause.
    printf '%s\t%s\n' "${cause%%,*}" "$(sed -E 's/[0-9a-f:.]*[0-9][0-9a-f:.]*//g' <<<"$because")" >>"$TMPDIR/texts"
    # Ping's code and reason are those of the call.
    local status_of_ping
    status_of_ping="$(field code | tr -d _) Some($(field reason))"
    [[ $exit == 1 && $got == "$step" && $called == "$status" ]] &&
        [[ $status != *Some* || ${status_of_ping,,} == "${status,,}" ]] && grep -qE -- "$text" <<<"$because"
    verdict "causes-${cause//[, ]/-}" $? "expected exit 1 after \"$step\", status $status and a text like: $text"
}

# drop_requests: drops what the server sends as ConnectRequest, the attribute behind headers of 20 (IPv4), 8 (UDP), 12 (BTH), 8
# (DETH) and 16 bytes (MAD), in a queue without room.
drop_requests() {
    local tc=(tc -n server)
    {
        "${tc[@]}" qdisc add dev wire root handle 1: htb && "${tc[@]}" class add dev wire parent 1: classid 1:1 htb rate 1mbit &&
            "${tc[@]}" qdisc add dev wire parent 1:1 pfifo limit 0 &&
            "${tc[@]}" filter add dev wire parent 1: protocol ip u32 match u16 0x0010 0xffff at 64 flowid 1:1
    } >"$TMPDIR/tc.log" 2>&1
}

rows() {
    local root=$TMPDIR/ca/root.pem
    local none='Unavailable Some(Unreachable)'
    row "no socket" "nothing runs on the server's host" "request sent" \
        "nothing listens on UDP port 4791 of 10.97.2.1: start the node there, or" "$none"
    to='[fd97:2::1]:7000' row "no socket, IPv6" "nothing runs on the server's host" "request sent" \
        "nothing listens on UDP port 4791 of fd97:2::1: start the node there, or" "$none"

    serve
    local host step="node started" prohibited="no route to" cause="no route, prohibited"
    for host in caller router; do
        ip -n "$host" route add unreachable 10.97.2.1
        row "no route, at the $host" "unreachable route on the $host" "$step" "no route to 10.97.2.1: a router, or this host" "$none"
        ip -n "$host" route del unreachable 10.97.2.1
        ip -n "$host" route add unreachable fd97:2::1
        to='[fd97:2::1]:7000' row "no route, at the $host, IPv6" "unreachable route on the $host" "$step" \
            "no route to fd97:2::1: a router, or this host" "$none"
        ip -n "$host" route del unreachable fd97:2::1
        ip -n "$host" route add prohibit 10.97.2.1
        row "$cause at the $host" "prohibit route on the $host" "$step" "$prohibited 10.97.2.1: " "$none"
        ip -n "$host" route del prohibit 10.97.2.1
        ip -n "$host" route add prohibit fd97:2::1
        to='[fd97:2::1]:7000' row "$cause at the $host, IPv6" "prohibit route on the $host" "$step" \
            "$prohibited fd97:2::1: " "$none"
        ip -n "$host" route del prohibit fd97:2::1
        step="request sent" cause="prohibited," prohibited="a firewall, on this host or on the path, refuses packets to UDP port 4791 of"
    done

    ip -n caller route add blackhole 10.97.2.1
    row "no route, blackhole at the caller" "blackhole route on the caller" "node started" "no route to 10.97.2.1: a router, or this host" "$none"
    ip -n caller route del blackhole 10.97.2.1

    # The kernel reports a datagram that an output rule drops as EPERM, and does not send an ICMP message.
    if need causes-prohibited-by-own-rule nft nftables >/dev/null &&
        on caller nft -f - <<<"table inet filter { chain output { type filter hook output priority 0; udp dport 4791 drop; }; }" 2>"$TMPDIR/nft.log"; then
        row "prohibited, by a rule of the caller" "output rule on the caller's host drops packets to UDP port 4791" "request sent" \
            "a firewall, on this host or on the path, refuses packets to UDP port 4791 of 10.97.2.1: have it" "$none"
        on caller nft flush ruleset
    else
        skip causes-prohibited-by-own-rule "no rules can be made here: $(tail -n 1 "$TMPDIR/nft.log" 2>/dev/null)"
    fi

    ip -n router route add blackhole 10.97.2.1
    row "no answer" "the router drops packets to the server" "request sent" "does not answer requests to connect at all: .*(firewall|4791)" "$none"
    ip -n router route del blackhole 10.97.2.1
    ip -n server route add blackhole 10.97.1.1
    row "no answer, from the server" "the server has a blackhole route to the caller" "request sent" "does not answer requests to connect at all: .*(firewall|4791)" "$none"
    ip -n server route del blackhole 10.97.1.1

    if drop_requests; then
        row "no dial-back" "the server's connection requests are dropped, its replies are not" "answered" \
            "accepts connections and does not connect back: .*4791" "$none"
        # A sender learns of these drops, and must not repeat its datagrams at once.
        tc -n server -s qdisc show dev wire | grep -qE 'dropped [1-9][0-9]{0,2},'
        verdict causes-no-dial-back-is-no-storm $? "$(tc -n server -s qdisc show dev wire | grep dropped)"
        tc -n server qdisc del dev wire root
    else
        skip causes-no-dial-back "the kernel cannot drop packets by their contents: $(tail -n 1 "$TMPDIR/tc.log")"
    fi

    to=10.97.2.1:7001 row "no listener" "the server's node has another port" "request sent" "no node listens on that port of the peer" "$none"
    stop

    serve
    if setpriv --reuid=65534 --regid=65534 --clear-groups true 2>/dev/null; then
        local directory=$TMPDIR/nobody
        mkdir "$directory" && chown 65534 "$directory"
        start caller holder hold 10.97.1.1
        as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
        row "port taken" "another user's program holds UDP port 4791 of the caller's address" "start" \
            "UDP port 4791 at 10.97.1.1 is taken by .*user 0.*; stop that one, set TRUNKLINE_PORT .*TRUNKLINE_ADDRESS" ""
        as=()
        unset directory
    else
        skip causes-port-taken "programs cannot run as another user here"
    fi
    stop
    serve
    mkdir "$TMPDIR/other"
    directory=$TMPDIR/other start caller holder serve 10.97.1.1
    row "other directory" "a node with another runtime directory holds the port" "start" \
        "UDP port 4791 at 10.97.1.1 is taken by process .*; give both programs the same runtime directory \(TRUNKLINE_RUNTIME_DIR\)" ""
    stop

    serve --connections rc
    row "other connections" "the server uses RC connections" "request sent" "RC.*--connections rc" "$none"
    stop

    local own=$TMPDIR/server.example till=$TMPDIR/caller.example name=(--name server.example)
    serve --identity "$own" --trust "$root"
    row "identity required" "the caller has no identity" "cookie received" "it requires an identity, and this node has none: give this node one" "Unauthenticated Some(Unreachable)"
    row "unknown root" "another authority issued the caller's certificate" "handshake begun" "the peer has no root for this node's certificate: have it issued" \
        "Unauthenticated Some(Unreachable)" --identity "$TMPDIR/stranger.example" --trust "$root" "${name[@]}"
    row "unknown root, at the caller" "the caller trusts another authority" "handshake begun" "no path from the peer's certificate to a root of this node's trust: add" \
        "Unauthenticated Some(Unreachable)" --identity "$till" --trust "$TMPDIR/ca2/root.pem" "${name[@]}"
    row "wrong name" "the caller expects another name" "session up" "expected other.example, the peer proved server.example: see which service" "Unauthenticated Some(Unreachable)" --identity "$till" --trust "$root" --name other.example
    row "expired" "the caller's certificate has expired" "start" "certificate expired on .*: renew it" "" --identity "$TMPDIR/expired" --trust "$root" "${name[@]}"
    stop
    /run/programs/examples/causes expiring "$TMPDIR/ca" server.example "$TMPDIR/expired" 3
    serve --identity "$TMPDIR/expired" --trust "$root"
    sleep 4
    row "expired, at the server" "the server's certificate expired while it ran" "handshake begun" "expired: renew it" "Unauthenticated Some(Unreachable)" --identity "$till" --trust "$root" "${name[@]}"
    stop
    serve
    row "identity demanded" "the server has no identity, and the caller demands one" "request sent" "it lacks an identity" "$none" --identity "$till" --trust "$root" "${name[@]}"
    stop

    serve --drains
    row "drains" "the server is in its grace period" "session up" "draining" ready
    stop
    serve --depth 16
    for host in $(seq 0 8); do
        TRUNKLINE_ADDRESS=10.97.1.1 start caller filler call --hold 10.97.2.1:7000 || break
    done
    row "limit" "an SRQ of 16 receives, which sessions use" "refused" "too many sessions" "$none"
    stop

    start server server refuse 10.97.2.1
    row "other version" "the server speaks version 99" "request sent" "the peer speaks version 99 of the protocol, this node version 5: update one" "FailedPrecondition Some(OtherProtocol)"
    stop
}

keys() { "$programs/trunkctl" keys "$@" >/dev/null; }
if ! { for ca in ca ca2; do keys init "$scratch/$ca"; done && keys issue "$scratch/ca" server.example --out "$scratch/server.example" &&
    keys issue "$scratch/ca" caller.example --out "$scratch/caller.example" &&
    keys issue "$scratch/ca2" stranger.example --out "$scratch/stranger.example" &&
    "$programs/examples/causes" expiring "$scratch/ca" caller.example "$scratch/expired" 0; }; then
    fail causes-certificates "the certificates cannot be issued"
    exit 1
fi

between_hosts causes 300
both=$(sort -u "$scratch/texts" | cut -f2 | sort | uniq -d)
test -z "$both"
verdict causes-are-distinct $? "two causes have the text: $both"
exit "$check_status"
