#!/usr/bin/env bash
# The text that examples/kv offers to a Prometheus server, read by promtool, which also reports violations of naming conventions.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

need promtool promtool prometheus && need promtool curl curl || exit 0
if ! build; then
    fail promtool-build "the example does not build"
    exit 1
fi

"$programs/kv-server" --listen 127.9.76.1:0 --metrics 127.9.76.1:0 >"$scratch/kv.log" 2>"$scratch/kv.err" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server"; rm -rf "$scratch"' EXIT
# The node prints the address for scrapes once it can answer.
for ((tries = 0; tries < 600; tries++)); do
    if grep -q '^metrics ' "$scratch/kv.log" || ! kill -0 "$server" 2>/dev/null; then break; fi
    sleep 0.1
done
url=$(sed -n 's/^metrics //p' "$scratch/kv.log")
curl --silent --show-error --fail --max-time 60 --output "$scratch/metrics" "$url" 2>"$scratch/curl.log"
verdict promtool-scrape $? "no scrape: $(tail -n 1 "$scratch/curl.log" "$scratch/kv.err" | tail -n 1)"
grep -q '^rpc_server_call_duration_seconds_count{' "$scratch/metrics"
verdict promtool-methods $? "the text has no method of the node"
promtool check metrics <"$scratch/metrics" >"$scratch/promtool.log" 2>&1
verdict promtool-check $? "promtool check metrics: $(head -n 1 "$scratch/promtool.log")"
exit "$check_status"
