#!/usr/bin/env bash
# Coverage-guided fuzzing of one target or all of them.
#
#   fuzz/run.sh                 every target, 60 s each
#   fuzz/run.sh packet 600      one target, 600 s
#   fuzz/run.sh packet FILE     replays one input
#
# Works with a stable toolchain and a C++ compiler: the coverage flags are stable, only the address
# sanitizer is not. FUZZ_SANITIZER=address adds it by setting RUSTC_BOOTSTRAP=1, which makes a
# stable compiler accept unstable flags; the parsers contain no unsafe code, so it is off by default.
#
# New inputs go to fuzz/corpus, crashes to fuzz/artifacts; neither is committed. An input worth
# keeping belongs into tests/corpus of transport/roce, transport or rpc, where `cargo test` replays it.
set -euo pipefail
cd "$(dirname "$0")"

all=(packet mad capture frame handshake identity exchange credit call_frame values)
targets=("${1:-all}")
if [[ ${targets[0]} == all ]]; then targets=("${all[@]}"); fi
what=${2:-60}
# A relative path is relative to the caller's directory.
if [[ $what == */* && $what != /* || -f $OLDPWD/$what ]]; then what=$OLDPWD/$what; fi

host=$(rustc -vV | sed -n 's/^host: //p')
flags="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares"
if [[ ${FUZZ_SANITIZER:-} == address ]]; then
    export RUSTC_BOOTSTRAP=1
    flags+=" -Zsanitizer=address"
fi
# With a target named, the flags do not reach build scripts.
RUSTFLAGS=$flags cargo build --release --target "$host" "${targets[@]/#/--bin=}"

seeds=../transport/roce/tests
for target in "${targets[@]}"; do
    program=target/$host/release/$target
    mkdir -p "corpus/$target" "artifacts/$target"
    if [[ -f $what ]]; then
        "$program" "$what"
        continue
    fi
    echo "== $target for $what s"
    folders=("corpus/$target")
    for corpus in {"$seeds",../transport/tests,../rpc/tests}/corpus/"$target"; do
        if [[ -d $corpus ]]; then folders+=("$corpus"); fi
    done
    if [[ $target == capture ]]; then folders+=("$seeds/vectors"); fi
    "$program" -max_total_time="$what" -max_len=16384 -artifact_prefix="artifacts/$target/" \
        -print_final_stats=1 "${folders[@]}"
done
