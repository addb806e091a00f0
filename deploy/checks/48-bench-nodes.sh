#!/usr/bin/env bash
# `trunkline-bench run --nodes` between four network namespaces, joined by a bridge with rate-limited links, with loss and delay
# from TRUNKLINE_FAULTS: all patterns, one of them beside TCP and with small calls, and a node that is killed during a run. No time
# is judged.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

need bench-nodes unshare util-linux && need bench-nodes ip iproute2 && need bench-nodes tc iproute2 || exit 0
need bench-nodes python3 python3 || exit 0
if ! why=$(unshare --user --map-root-user --net --mount true 2>&1); then
    skip bench-nodes "namespaces cannot be made here: $why"
    exit 0
fi
if ! build; then
    fail bench-nodes-build "the program does not build"
    exit 1
fi
export PROGRAM=$programs/trunkline-bench SCRATCH=$scratch

# All processes in these namespaces end with the process that created them.
inside() {
    set -u
    mount -t tmpfs none /run && mkdir -p /run/netns || return 3
    ip link set lo up
    ip link add bridge type bridge && ip link set bridge up || return 3
    local pids=() n pid
    for n in 1 2 3 4; do
        ip netns add "n$n" && ip link add "v$n" type veth peer name eth0 netns "n$n" || return 3
        ip link set "v$n" master bridge up
        nsenter --net="/run/netns/n$n" bash -c "ip link set lo up; ip addr add 10.99.0.$n/24 dev eth0; ip link set eth0 up
            tc qdisc add dev eth0 root tbf rate 200mbit burst 256kb latency 50ms" || return 3
        mkdir -m 0700 "$SCRATCH/n$n" # shared by the programs of one namespace
        TRUNKLINE_RUNTIME_DIR=$SCRATCH/n$n TRUNKLINE_FAULTS=drop=0.001,delay=50us,seed=$n \
            nsenter --net="/run/netns/n$n" "$PROGRAM" node --address "10.99.0.$n" --allow-unauthenticated >"$SCRATCH/n$n/log" 2>&1 &
        pids+=($!)
    done
    for n in 1 2 3 4; do
        for _ in $(seq 100); do grep -q listening "$SCRATCH/n$n/log" && break || sleep 0.1; done
    done
    for pattern in pairs all-to-all incast ring; do
        bench "$pattern" 2 "$pattern" --size 1K --no-tcp
        echo "status $pattern $?"
    done
    bench incast 1 tcp --small-beside-bulk --size 64K
    echo "status tcp $?"
    (sleep 3 && kill -KILL "${pids[3]}") &
    bench all-to-all 4 killed --size 1K --no-tcp 2>"$SCRATCH/killed.err"
    echo "status killed $?"
    kill "${pids[@]:0:3}"
    for pid in "${pids[@]:0:3}"; do
        wait "$pid"
        echo "status node $?"
    done
}

# bench PATTERN REPETITIONS NAME [OPTION]...: runs the coordinator in the first namespace.
bench() {
    TRUNKLINE_RUNTIME_DIR=$SCRATCH/n1 timeout 120 nsenter --net=/run/netns/n1 "$PROGRAM" run --quiet --allow-unauthenticated \
        --nodes 10.99.0.1,10.99.0.2,10.99.0.3,10.99.0.4 --pattern "$1" --repetitions "$2" --seconds 1 --outstanding 8 \
        --json "$SCRATCH/$3.json" --html "$SCRATCH/$3.html" "${@:4}"
}
export -f inside bench

timeout 300 unshare --user --map-root-user --net --mount --pid --fork --kill-child bash -c inside >"$scratch/out" 2>&1
if [[ $? == 3 ]]; then
    skip bench-nodes "links between namespaces cannot be made here: $(tail -n 1 "$scratch/out")"
    exit 0
fi
python3 - "$scratch" <<'EOF'
import json, sys

scratch = sys.argv[1]
statuses = [line.split()[1:] for line in open(f"{scratch}/out") if line.startswith("status ")]
of = {name: int(status) for name, status in statuses if name != "node"}
failed = []


def judge(name, is_right, why):
    print(f"pass {name}" if is_right else f"fail {name}: {why}")
    if not is_right:
        failed.append(name)


def read(name):
    try:
        return json.load(open(f"{scratch}/{name}.json"))
    except (OSError, ValueError) as error:
        return {"error": str(error)}


pairs = {"pairs": 2, "all-to-all": 12, "incast": 3, "ring": 4}
for pattern, count in pairs.items():
    run = read(pattern)
    nodes = run.get("nodes", [])
    measured = [pair for node in nodes for pair in node.get("pairs", []) if pair.get("calls_per_s", 0) > 0 and "failed" not in pair]
    is_whole = of.get(pattern) == 0 and run.get("partial") is False and len(nodes) == 4 and len(measured) == count
    drawn = "<svg" in open(f"{scratch}/{pattern}.html").read() if is_whole else False
    figures = drawn and all(run.get(key, 0) > 0 for key in ("rtt_p50_ns", "rtt_p99_ns", "calls_per_s", "bytes_per_s"))
    judge(f"bench-nodes-{pattern}", is_whole and figures, f"status {of.get(pattern)}, {len(measured)} of {count} pairs: {str(run)[:2000]}")
run = read("tcp")
rows = [run.get("comparison", {}), *(node.get("comparison", {}) for node in run.get("nodes", []))]
goodput = [row for row in rows if min(row.get(key) or 0 for key in ("goodput_bytes_per_s", "tcp_bytes_per_s", "tcp_ratio")) > 0]
small = [row for row in rows if (row.get("small") or {}).get("rtt_p99_ns", 0) > 0]
jain = [row for row in rows if 0.25 <= (row.get("jain") or 0) <= 1]
judged = [row for row in rows if row.get("verdict", {}).get("goodput") in (True, False)]
# All and four nodes; all and three callers; all and the one target.
counts = [len(which) for which in (goodput, small, jain, judged)]
is_right = of.get("tcp") == 0 and counts == [5, 4, 2, 5]
judge("bench-nodes-tcp", is_right, f"status {of.get('tcp')}, rows {counts}: {str(run)[:2000]}")
run, told = read("killed"), open(f"{scratch}/killed.err").read()
lost = list(run.get("lost", {}))
others = [node for node in run.get("nodes", [])[:3] if node.get("made", {}).get("calls_per_s", 0) > 0]
is_right = of.get("killed") == 5 and lost == ["10.99.0.4"] and run.get("partial") is True and "10.99.0.4 was lost" in told
judge("bench-nodes-killed", is_right and len(others) == 3, f"status {of.get('killed')}, lost {lost}, {len(others)} others: {told[:2000]}")
ends = [status for name, status in statuses if name == "node"]
judge("bench-nodes-end", ends == ["0"] * 3, f"nodes that were told to end have status {ends}")
if failed:
    print(open(f"{scratch}/out").read()[-4000:])
    sys.exit(1)
EOF
exit $?
