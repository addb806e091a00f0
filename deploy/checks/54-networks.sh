#!/usr/bin/env bash
# Clients behind a stateful firewall or an address translator, devices at other UDP ports, and another user who sends from the caller's address. The hosts
# are network namespaces with a router between them. Prints a table: row, how it was made, the result, and what the logs of both
# sides say.
#
# 54-networks.sh [--strict]: also judges the rate of calls under attack, which a quiet machine allows.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"
# shellcheck source-path=SCRIPTDIR source=hosts.bash
. deploy/checks/hosts.bash

if (($# > 0)) && [[ $* != --strict ]]; then
    echo "54-networks.sh: expected --strict, or no argument" >&2
    exit 2
fi
export strict=${1-}
prepare_hosts networks
# The rows that use these skip without them.
need networks-firewall nft nftables >/dev/null
need networks-forged python3 python3 >/dev/null
tree=$scratch/tree
small_tree "$tree"
export tree

# firewall EGRESS: the caller drops incoming packets that are no answers. EGRESS is the rule for packets that it may send;
# if empty, all. Connection tracking leaves out the neighbour discovery of IPv6.
firewall() {
    local neighbours='icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept' output=''
    if [[ $1 ]]; then output="chain output { type filter hook output priority 0; policy drop; oif lo accept; $neighbours; $1 accept; }"; fi
    on caller nft -f - <<END 2>"$TMPDIR/nft.log"
flush ruleset
table inet filter {
    counter dropped { }
    chain input { type filter hook input priority 0; policy drop; iif lo accept; $neighbours; ct state established,related accept; counter name dropped; }
    $output
}
END
}

# row NAME HOW: prints a row of the table with `result`. Judges the status of the preceding command.
row() {
    local status=$?
    {
        echo "$1"
        echo "    made by     $2"
        echo "    result      $result"
        echo "    caller log  $(last_log "$TMPDIR/call.log")"
        echo "    server log  $(last_log "$TMPDIR/server.log")"
    }
    verdict "networks-$1" "$status" "$result"
}

# serve_tree ADDRESS OPTION...: starts the demo's server.
serve_tree() {
    local address=$1
    shift
    program=trunkline-demo start server server server --server-address "$address" --tree "$tree" --allow-unauthenticated "$@" &&
        listening=$(sed -n 's/^listening //p' "$TMPDIR/out")
}

# fetch ADDRESS OPTION...: fetches the tree from the address `listening` and makes calls, from the given one. True if no file
# differs, the first session lasted, and no log has warnings but those of the pattern `warned`. Sets `result`.
fetch() {
    local address=$1 status
    shift
    on "${from-caller}" timeout 200 /run/programs/trunkline-demo client --server "$listening" --client-address "$address" --tree "$tree" \
        --allow-unauthenticated "$@" >"$TMPDIR/call" 2>"$TMPDIR/call.log"
    status=$?
    result="exit $status, $(sed -nE 's/^(files|calls) +//p' "$TMPDIR/call" | tr '\n' ' ')"
    ((status == 0)) && grep -q ' 0 mismatches' "$TMPDIR/call" && only_session
}

# only_session: true if the caller's log has one session, without a failed attempt, and both logs have no other warnings than `warned`.
only_session() {
    grep -q ' session=1 step="session up"' "$TMPDIR/call.log" && ! grep -q ' session=[2-9]' "$TMPDIR/call.log" &&
        ! grep -hE ' (WARN|ERROR) ' "$TMPDIR/call.log" "$TMPDIR/server.log" | grep -vqE "${warned-^\$}"
}

# fetches NAME HOW: fetches with IPv4 and IPv6, one and two pollers, alone and beside processes that hold UDP port 4791.
fetches() {
    local family pollers beside
    for family in IPv4 IPv6; do
        local -A own=([caller]=10.97.1.1 [server]=10.97.2.1)
        if [[ $family == IPv6 ]]; then own=([caller]=fd97:1::1 [server]=fd97:2::1); fi
        for pollers in 1 2; do
            for beside in alone server caller; do
                if [[ $beside != alone ]]; then start "$beside" beside serve "${own[$beside]}"; fi
                serve_tree "${own[server]}" --pollers "$pollers" && fetch "${own[caller]}" --pollers "$pollers" --calls 2000
                row "$1-$family-$pollers-$beside" "$2; pollers: $pollers; process beside that has UDP port 4791: ${beside/alone/none}"
                stop
            done
        done
    done
    on caller nft list counter inet filter dropped | grep -q 'packets [1-9]'
    verdict "networks-$1-drops" $? "the firewall has dropped nothing"
}

# translators: makes two hosts with the addresses 10.97.9.2 and fd97:9::2, each behind a translator that is connected to the router. The translator of
# `right` uses other ports than the clients.
translators() {
    local host number random
    for host in "left 3" "right 4 random"; do
        read -r host number random <<<"$host"
        ip netns add "$host" && ip netns add "gate-$host" && mkdir "$TMPDIR/$host" "$TMPDIR/gate-$host" &&
            ip -n "$host" link set lo up && ip -n "$host" link add wire type veth peer name inside netns "gate-$host" &&
            ip -n "gate-$host" link add outside type veth peer name "$host" netns router &&
            ip -n "$host" address add 10.97.9.2/24 dev wire && ip -n "gate-$host" address add 10.97.9.1/24 dev inside &&
            ip -n "gate-$host" address add "10.97.$number.1/24" dev outside &&
            ip -n router address add "10.97.$number.254/24" dev "$host" &&
            ip -n "$host" link set wire up && ip -n "gate-$host" link set inside up && ip -n "gate-$host" link set outside up &&
            ip -n router link set "$host" up && ip -n "$host" route add default via 10.97.9.1 &&
            ip -n "gate-$host" route add default via "10.97.$number.254" &&
            ip -n "$host" address add fd97:9::2/64 dev wire nodad && ip -n "gate-$host" address add fd97:9::1/64 dev inside nodad &&
            ip -n "gate-$host" address add "fd97:$number::1/64" dev outside nodad &&
            ip -n router address add "fd97:$number::254/64" dev "$host" nodad &&
            ip -n "$host" route add default via fd97:9::1 && ip -n "gate-$host" route add default via "fd97:$number::254" &&
            on "gate-$host" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 &&
            on "gate-$host" nft -f - <<<"table inet nat {
                chain postrouting { type nat hook postrouting priority 100; oifname outside masquerade $random; }
            }" || return
    done 2>"$TMPDIR/nft.log"
}

# translated: two clients with one address behind two translators call one server, with IPv4 and IPv6, alone and beside a process that
# holds UDP port 4791.
translated() {
    local family beside left from status own server seen
    for family in IPv4 IPv6; do
        own=10.97.9.2 server=10.97.2.1 seen='10.97.%s.1'
        if [[ $family == IPv6 ]]; then own=fd97:9::2 server=fd97:2::1 seen='\[fd97:%s::1\]'; fi
        for beside in alone server; do
            if [[ $beside != alone ]]; then start server beside serve "$server"; fi
            serve_tree "$server" --pollers 2
            on left timeout 200 /run/programs/trunkline-demo client --server "$listening" --client-address "$own" --tree "$tree" \
                --allow-unauthenticated --pollers 2 --calls 2000 >"$TMPDIR/left.call" 2>"$TMPDIR/left.log" &
            left=$!
            from=right fetch "$own" --pollers 2 --calls 2000
            status=$?
            wait "$left" && grep -q ' 0 mismatches' "$TMPDIR/left.call" && ((status == 0)) &&
                ! grep -E ' (WARN|ERROR) ' "$TMPDIR/left.log" && up_from "${seen/\%s/3}" && up_from "${seen/\%s/4}"
            row "translated-$family-$beside" "two clients with one private address behind two translators; process beside that has UDP port 4791: ${beside/alone/none}"
            stop
        done
    done
    serve_tree 10.97.2.1
    on left /run/programs/trunkctl ping -c 2 --interval-ms 40000 "$listening" >"$TMPDIR/ping" 2>"$TMPDIR/call.log"
    result="exit $?, $(tail -n 1 "$TMPDIR/ping")"
    [[ $result == 'exit 0,'* ]] && up_from 10.97.3.1
    row translated-idle "calls before and after 40 s without calls, through a translator"
    stop
}

# flushed: the translator of `right` loses its mappings while a client calls, and gives it another port. A call is answered again
# within 5 s, which is judged strictly only.
flushed() {
    local before began most=30
    if [[ $strict ]]; then most=5; fi
    serve_tree 10.97.2.1
    TRUNKLINE_ADDRESS=10.97.9.2 start right call call --repeat "$listening"
    until (($(wc -l <"$TMPDIR/out") >= 6)) || ! kill -0 "${running[-1]}" 2>/dev/null; do sleep 0.1; done
    before=$(sed 1d "$TMPDIR/out" | sort -u | tr '\n' ' ')
    on gate-right conntrack -D >/dev/null 2>"$TMPDIR/nft.log"
    began=$(date +%s%N)
    # A last call of the old session may still be answered.
    until sed '1,/^[^a]/d' "$TMPDIR/out" | grep -q answered || (($(date +%s%N) - began > most * 1000000000)); do sleep 0.1; done
    began=$((($(date +%s%N) - began) / 1000000))
    result="before: $before; in all: $(sed 1d "$TMPDIR/out" | sort | uniq -c | tr -s ' \n' ' '); again after $began ms"
    [[ $before == 'answered ' ]] && ((began <= most * 1000)) &&
        up_from 10.97.4.1 2
    row translated-flushed "a client calls all the time, and its translator forgets its port"
    stop
}

# up_from ADDRESS [SESSIONS]: true if the server has had one session, or this number, with nodes at this address.
up_from() { (($(grep -cE " peer=$1:.* step=\"session up\"" "$TMPDIR/server.log") == ${2-1})); }

# meets NAME HOW SERVER: pings the server and makes a call.
meets() {
    on caller /run/programs/trunkctl ping -c 1 --timeout-ms 20000 "$3" >"$TMPDIR/ping" 2>"$TMPDIR/ping.log"
    local pinged=$? called
    TRUNKLINE_ADDRESS=10.97.1.1 on caller timeout 30 /run/programs/examples/causes call "$3" >"$TMPDIR/call" 2>"$TMPDIR/call.log"
    called=$(head -n 1 "$TMPDIR/call")
    result="ping: exit $pinged, call: $called"
    [[ $pinged == 0 && $called == ready ]] &&
        # On a busy machine, the caller's poller may end late.
        ! grep -hE ' (WARN|ERROR) ' "$TMPDIR/call.log" "$TMPDIR/server.log" | grep -vq ': pollers not idle after the grace period'
    row "$1" "$2"
}

ports() {
    local -x TRUNKLINE_PORT=5791
    start server server serve 10.97.2.1
    meets port-both "both have UDP port 5791" 10.97.2.1:7000
    unset TRUNKLINE_PORT
    meets port-server "the server has UDP port 5791, the caller 4791" 10.97.2.1:7000/5791
    stop
    export TRUNKLINE_PORT=5791
    serve_tree 10.97.2.1 --pollers 2 && fetch 10.97.1.1 --pollers 2 --calls 2000
    row port-tree "both have UDP port 5791, with two pollers"
    stop
    unset TRUNKLINE_PORT
}

# narrow: the hosts send packets of up to 9,000 bytes, and the router drops those of more than 1,500 without an error. Large calls fail
# with the path MTUs 4,096 and 2,048, and each failure lowers the next.
narrow() {
    local link attempt exits=''
    for link in "caller wire" "server wire" "router near" "router far"; do ip -n "${link% *}" link set "${link#* }" mtu 9000; done &&
        on router ip route replace 10.97.2.0/24 dev far mtu lock 1500 && on router ip route replace 10.97.1.0/24 dev near mtu lock 1500 &&
        on router sysctl -qw net.ipv4.icmp_ratemask=0 net.ipv4.icmp_ratelimit=1000000 || return
    serve_tree 10.97.2.1
    for attempt in 1 2 3; do
        warned='large packets' fetch 10.97.1.1 --calls 2000
        exits+="$? "
    done
    result="attempts: $exits; $result"
    [[ $exits == '1 1 0 ' ]] && grep -q 'large packets vanish' "$TMPDIR/server.log"
    row narrow "the router drops packets of more than 1,500 bytes without an error, the hosts send up to 9,000"
    stop
}

# users: two users of the server's host serve at one address.
users() {
    start server server serve 10.97.2.1
    local as=("${nobody[@]}") directory=$TMPDIR/nobody
    mkdir "$directory" && chown 65534 "$directory"
    start server taken serve 10.97.2.1 >"$TMPDIR/started"
    result=$(<"$TMPDIR/started")
    grep -q 'UDP port 4791 at 10.97.2.1 is taken by .*TRUNKLINE_PORT' "$TMPDIR/started"
    row port-taken "another user starts at the same address and port"
    TRUNKLINE_PORT=5792 start server server serve 10.97.2.1
    as=()
    unset directory
    meets users-first "root has UDP port 4791 of the server's address" 10.97.2.1:7000
    meets users-second "nobody has UDP port 5792 of the server's address" 10.97.2.1:7000/5792
    stop
}

# forged: another user of the caller's host sends copies of the caller's requests and random datagrams from another UDP port.
forged() {
    # The first python3 of the search path may be root's.
    local sender=(env PATH=/usr/bin "${nobody[@]}" python3) alone fetched requests=$TMPDIR/requests.pcap
    if ! on caller "${sender[@]}" --version >/dev/null 2>&1; then
        skip networks-forged "another user has no /usr/bin/python3 here"
        return
    fi
    serve_tree 10.97.2.1
    TRUNKLINE_PCAP=$requests fetch 10.97.1.1 --calls 20000
    row forged-none "no other user sends"
    alone=$(calls_per_s)
    # The device appends to its file header.
    truncate -s 24 "$requests" && chmod 644 "$requests"
    nsenter --net=/run/netns/caller "${sender[@]}" - "$requests" <deploy/checks/forged_requests.py >"$TMPDIR/sent" 2>&1 &
    # The server answers the copies by cookies to the caller's port, which has not asked.
    warned=' address validation cookie not returned ' TRUNKLINE_PCAP=$requests fetch 10.97.1.1 --calls 20000
    fetched=$?
    kill $! && wait $! 2>/dev/null
    result+="; $(tail -n 1 "$TMPDIR/sent"), $(calls_per_s) calls/s in place of $alone"
    ((fetched == 0)) && (($(grep -c 'step="session up"' "$TMPDIR/server.log") == 2)) && grep -qE ' [0-9]{2,} refusals' "$TMPDIR/sent" &&
        [[ -z $strict || $(($(calls_per_s) * 2 >= alone)) == 1 ]]
    row forged "nobody sends copies of the caller's requests, and 5,000 random datagrams/s, from another UDP port of its address"
    stop
}

# calls_per_s: prints the rate of the last fetch.
calls_per_s() { sed -nE 's/.* ([0-9]+) calls\/s.*/\1/p' "$TMPDIR/call"; }

rows() {
    local -x TRUNKLINE_LOG=info,trunkline::setup=debug
    local result listening nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    : >"$TMPDIR/call.log"
    if firewall ''; then
        fetches firewall "the caller's firewall passes answers only"
        firewall 'udp dport 4791'
        fetches egress "the caller's firewall passes UDP to port 4791 and answers only"
        on caller nft flush ruleset
    else
        skip networks-firewall "no rules for connections can be made here: $(tail -n 1 "$TMPDIR/nft.log")"
    fi
    if translators; then
        translated
        if need networks-translated-flushed conntrack conntrack; then flushed; fi
    else
        skip networks-translated "no rules for translation can be made here: $(tail -n 1 "$TMPDIR/nft.log")"
    fi
    ports
    if "${nobody[@]}" true 2>/dev/null; then
        users
        forged
    else
        skip networks-users "programs cannot run as another user here"
    fi
    narrow
}

between_hosts networks 700
exit "$check_status"
