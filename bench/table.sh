#!/usr/bin/env bash
# The table of docs/book/src/reference/performance.md: calls over UDP, in process and through shared memory, all floors, and other systems, in seven interleaved repetitions.
# Takes about eight minutes on two cores, which should be otherwise idle.
#
#   bench/table.sh FOLDER [REPETITIONS [SECONDS]]
#
# FOLDER gets one JSON file for each part, and report.html with all of them. To compare two folders, run
# `trunkline-bench compare ONE/rate.json OTHER/rate.json`.
set -euo pipefail
cd "$(dirname "$0")/.."
if (($# < 1 || $# > 3)); then
    echo "usage: bench/table.sh FOLDER [REPETITIONS [SECONDS]]" >&2
    exit 2
fi
[[ $1 == /* ]] && folder=$1 || folder=$OLDPWD/$1
repetitions=${2:-7}
seconds=${3:-0.3}
mkdir -p "$folder"

cargo build --profile dist --locked --package trunkline-bench
program=${CARGO_TARGET_DIR:-target}/dist/trunkline-bench

# part NAME ARGUMENTS...: runs a measurement, shows its output, and writes FOLDER/NAME.json.
part() {
    local name=$1
    shift
    "$program" "$@" --repetitions "$repetitions" --seconds "$seconds" --json "$folder/$name.json"
}

part latency latency --size 64,1M --peers
part rate rate --size 64 --outstanding 1,32 --peers
part bandwidth bandwidth --peers
part latency-process latency --size 64 --link process
part rate-process rate --size 64 --outstanding 32 --link process
part bandwidth-process bandwidth --link process
part latency-shm latency --size 64 --link shm
part rate-shm rate --size 64 --outstanding 32 --link shm
part bandwidth-shm bandwidth --link shm
"$program" report "$folder"/{latency,rate,bandwidth}{,-process,-shm}.json --html "$folder/report.html"
echo "$folder/report.html"
