#!/usr/bin/env bash
# `trunkline-bench --peers` measures the systems in Rust, which it builds, and Debian's systems that run here. No time is judged.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

peers=bench/peers
if ! cargo fetch --locked --quiet --manifest-path "$peers/Cargo.toml" 2>"$scratch/fetch.log"; then
    skip bench-peers "its crates are not here and cannot be fetched: $(tail -n 1 "$scratch/fetch.log")"
    exit 0
fi
need bench-peers python3 python3 || exit 0
# The program skips missing systems itself, with the reason.
need ucx_perftest ucx_perftest ucx-utils || true
need fi_pingpong fi_pingpong libfabric-bin || true
need ib_send_lat ib_send_lat perftest || true

cargo clippy --quiet --release --locked --manifest-path "$peers/Cargo.toml" -- -D warnings
verdict bench-peers-clippy $? "clippy finds something in $peers"
cargo fmt --check --manifest-path "$peers/Cargo.toml"
verdict bench-peers-format $? "$peers is not formatted"
if ! build; then
    fail bench-peers-build "the program does not build"
    exit 1
fi

for measure in latency rate bandwidth; do
    name=bench-peers-$measure
    json=$scratch/$measure.json
    if ! timeout 600 "$programs/trunkline-bench" "$measure" --peers --repetitions 2 --seconds 0.1 \
        --quiet --json "$json"; then
        fail "$name" "it has ended with an error"
        continue
    fi
    python3 - "$json" "$name" <<'EOF'
import json, sys

path, name = sys.argv[1:]
point = json.load(open(path))
peers = point.get("peers", {})
in_rust = ["iceoryx2", "tarpc, TCP", "tarpc, Unix socket", "tonic, TCP", "tonic, TLS", "tonic, Unix socket"]
absent = [system for system in in_rust if not peers.get(system, {}).get("p50_ns", {}).get("median", 0) > 0]
wrong = [system for system, figures in peers.items() if not all(spread["median"] > 0 for spread in figures.values())]
for system, why in point.get("peers_skipped", {}).items():
    if system not in in_rust and "one message under way" not in why:
        print(f"skip {name}: {system}: {why}")
if absent or wrong:
    print(f"fail {name}: not measured: {absent}; without a positive figure: {wrong}; {point.get('peers_skipped')}")
    sys.exit(1)
print(f"pass {name}: {', '.join(peers)}")
EOF
    # The program has printed the verdict itself.
    if (($? != 0)); then check_status=1; fi
done
exit "$check_status"
