#!/usr/bin/env bash
# The feature rdma-core builds with Debian's headers. On the drop-in libraries the adapter works through the real C ABI,
# including XRC: its tests, the conformance suite, the demo, the examples, whole nodes.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

# Packages from which the bindings are generated. A skip names all of them, whichever is missing.
headers=yes
need_file rdma-core-verbs-headers /usr/include/infiniband/verbs.h libibverbs-dev || headers=
need_file rdma-core-cm-headers /usr/include/rdma/rdma_cma.h librdmacm-dev || headers=
provide rdma-core-libclang libclang-dev has_libclang || headers=
if [[ -z $headers ]]; then
    skip rdma-core "the feature rdma-core cannot be built here, so none of it was checked"
    exit "$check_status"
fi

# build_step NAME SECONDS COMMAND...: fails with the end of its output.
build_step() {
    local name=$1 limit=$2 began=$SECONDS
    shift 2
    timeout --kill-after=10 "$limit" "$@" >"$scratch/build.log" 2>&1
    verdict "$name" $? "within $limit s: $* printed: $(grep -E '^(error|warning)' "$scratch/build.log" | head -n 5 | tr '\n' ';')"
    echo "    $((SECONDS - began)) s"
}

# Uses the usual target directory: the feature changes only the adapter and the crates that depend on it, and the rest is built
# already. Programs and examples are built along with the tests.
build_step rdma-core-build 600 cargo test --workspace --features rdma-core --locked --no-run --message-format=json-render-diagnostics
cp "$scratch/build.log" "$scratch/artifacts"
if ((check_status != 0)); then
    grep -v '^{' "$scratch/build.log"
    exit "$check_status"
fi
build_step rdma-core-clippy 500 cargo clippy --workspace --features rdma-core --all-targets --locked -- -D warnings
build_step rdma-core-dropin 600 cargo dropin

# on_drop_in COMMAND...: runs the command on our libraries, with the addresses and the directory of this check.
mkdir -m 700 "$scratch/runtime"
tail=$((RANDOM % 250 + 2))
address=127.$((RANDOM % 200 + 20)).$((RANDOM % 250 + 1)).$tail
other=${address%.*}.$((tail + 1))
unset TRUNKLINE_PROVIDER TRUNKLINE_DEVICE TRUNKLINE_GID_INDEX TRUNKLINE_CONNECTIONS TRUNKLINE_ADDRESS TRUNKLINE_XRC TRUNKLINE_FAULTS TRUNKLINE_PCAP TRUNKLINE_LINK
drop_in=(env LD_LIBRARY_PATH="$PWD/target/dropin" TMPDIR="$scratch" TRUNKLINE_RUNTIME_DIR="$scratch/runtime"
    TRUNKLINE_REQUIRE_DEVICE=1)
on_drop_in() { "${drop_in[@]}" "$@"; }

# check NAME SECONDS COMMAND...: runs the command on the drop-in libraries, and shows its output if it fails.
check() {
    local name=$1 limit=$2 status
    shift 2
    on_drop_in timeout --kill-after=10 "$limit" "$@" >"$scratch/$name.log" 2>&1
    status=$?
    if ((status != 0)); then tail -n 40 "$scratch/$name.log" | sed 's/^/    /'; fi
    verdict "$name" "$status" "status $status"
}

# The conformance suite must pass, and must really have checked XRC.
conformance() {
    check rdma-core-conformance 300 env TRUNKLINE_ADDRESS="$address,$other" "$programs/examples/nic_conformance"
    tail -n 1 "$scratch/rdma-core-conformance.log"
    # Domains, targets, endpoints, in one process and between several.
    local item missing=
    for item in "A5 +held +held " "C4 +held +held " "G1 +held +held " "J5 +held +- " "R8 +held +- "; do
        grep -qE "^$item" "$scratch/rdma-core-conformance.log" || missing+="${item%% *} "
    done
    [[ -z $missing ]]
    verdict rdma-core-conformance-xrc $? "not held: $missing"
    # The same device without XRC, like soft RoCE and many NICs.
    TRUNKLINE_XRC=off check rdma-core-conformance-rc 300 env TRUNKLINE_ADDRESS="$address,$other" "$programs/examples/nic_conformance"
    missing=
    for item in "A9 +held " "R1 +held " "R3 +held " "R8 +held " "G1 +skipped +skipped "; do
        grep -qE "^$item" "$scratch/rdma-core-conformance-rc.log" || missing+="${item%% *} "
    done
    [[ -z $missing ]]
    verdict rdma-core-conformance-without-xrc $? "not as it should be: $missing"
}
conformance

# own_tests NAME SECONDS PACKAGE FOLDER [PROGRAM]: runs all tests of a package, as built above, at addresses that they choose.
# There is one check for each test program. PROGRAM holds several groups of tests, and gets a check with a separate time limit
# for each of its modules.
own_tests() {
    local name=$1 limit=$2 package=$3 folder=$4 grouped=${5:-} program target module count=0
    local environment=(env --chdir="$folder" TRUNKLINE_MESH_ADDRESS="$address" TRUNKLINE_MESH_DEAD="$other")
    while IFS= read -r program; do
        target=$(basename "${program%-*}")
        count=$((count + 1))
        if [[ $target != "$grouped" ]]; then
            check "$name-$target" "$limit" "${environment[@]}" "$program"
            continue
        fi
        on_drop_in "${environment[@]}" "$program" --list --format terse >"$scratch/$target.list"
        # A test outside any module would be in no group and would not run.
        if [[ ! -s $scratch/$target.list ]] || grep -vqE '^[a-z_]+::.*: test$' "$scratch/$target.list"; then
            fail "$name-$target" "its tests cannot be grouped by module: $(head -n 3 "$scratch/$target.list" | tr '\n' ';')"
        fi
        while IFS= read -r module; do
            check "$name-$module" "$limit" "${environment[@]}" "$program" "$module::"
        done < <(sed -nE 's/^([a-z_]+)::.*: test$/\1/p' "$scratch/$target.list" | sort -u)
    done < <(grep -F "#$package@" "$scratch/artifacts" | grep -E '"test":true' | sed -nE 's/.*"executable":"([^"]+)".*/\1/p')
    ((count > 1))
    verdict "$name" $? "only $count test programs of $package were found"
}
own_tests rdma-core-adapter 300 trunkline-rdma-core transport/rdma-core
# Whole nodes. The drop-in device has the loopback addresses of these tests, so auto chooses it. In the test mesh, eight nodes
# connect all to all while one address is dead and one peer never answers.
own_tests rdma-core-nodes 300 trunkline-transport transport nodes

# The choice of a device: a node at a loopback address finds the device that has it, and reports it.
demo() {
    local name=$1 report=$scratch/$1.json
    shift
    small_tree "$scratch/tree"
    check "$name" 120 "$programs/trunkline-demo" --tree "$scratch/tree" --calls 2000 --json "$report" "$@"
}
TRUNKLINE_LOG=info demo rdma-core-demo --server-address "$address" --client-address "$address"
report_has "$scratch/rdma-core-demo.json" provider=rdma-core device=trunkline0 connections=xrc mismatches=0 files=5 calls=2000
verdict rdma-core-demo-auto-xrc $? "auto did not choose XRC on the device: $(head -c 600 "$scratch/rdma-core-demo.json" 2>/dev/null)"
grep -qE "RDMA provider chosen.*rdma-core: trunkline0 has $address" "$scratch/rdma-core-demo.log"
verdict rdma-core-log $? "the log does not tell the choice: $(grep -m 1 -F provider "$scratch/rdma-core-demo.log")"
demo rdma-core-demo-pollers --server-address "$address" --client-address "$other" --pollers 2 --provider require --device trunkline0
report_has "$scratch/rdma-core-demo-pollers.json" provider=rdma-core mismatches=0 pollers=2
verdict rdma-core-demo-require $? "two pollers on the device that was named"
demo rdma-core-demo-rc --server-address "$address" --client-address "$address" --connections rc
report_has "$scratch/rdma-core-demo-rc.json" provider=rdma-core connections=rc mismatches=0
verdict rdma-core-demo-rc-report $? "RC was asked for"
TRUNKLINE_XRC=off demo rdma-core-demo-no-xrc --server-address "$address" --client-address "$address" --provider require
report_has "$scratch/rdma-core-demo-no-xrc.json" provider=rdma-core connections=rc mismatches=0
verdict rdma-core-demo-no-xrc-report $? "the device has no XRC, so RC is to be taken"
demo rdma-core-demo-soft --server-address "$address" --client-address "$address" --provider soft
report_has "$scratch/rdma-core-demo-soft.json" provider=softrdma mismatches=0
verdict rdma-core-demo-soft-report $? "the software device was asked for"

# refuses NAME WORDS COMMAND...: passes if the program fails with this message.
refuses() {
    local name=$1 words=$2
    shift 2
    if on_drop_in timeout 60 "$@" >"$scratch/$name.log" 2>&1; then
        fail "$name" "it started"
    else
        grep -qF -- "$words" "$scratch/$name.log"
        verdict "$name" $? "it does not say \"$words\": $(tail -n 3 "$scratch/$name.log")"
    fi
}
refuses rdma-core-refuses-device "no RDMA device is called mlx5_0; there are: trunkline0" \
    "$programs/trunkline-demo" --tree "$scratch/tree" --calls 1 --provider require --device mlx5_0
refuses rdma-core-refuses-gid "is not used; usable are: 0 ($address)" \
    env TRUNKLINE_ADDRESS="$address" "$programs/trunkline-demo" --tree "$scratch/tree" --calls 1 --server-address "$address" \
    --client-address "$address" --provider require --gid-index 7
# With Debian's libraries, on a machine without a NIC: the reported reason, and the choice of auto.
if compgen -G "/sys/class/infiniband/*" >/dev/null; then
    skip rdma-core-no-device "this machine has an RDMA device"
else
    LD_LIBRARY_PATH='' timeout 60 "$programs/trunkline-demo" --tree "$scratch/tree" --calls 1 --provider require >"$scratch/none.log" 2>&1
    grep -qE "there is no /dev/infiniband|there is no RDMA device|permission denied opening" "$scratch/none.log"
    verdict rdma-core-no-device $? "it does not say why: $(tail -n 3 "$scratch/none.log")"
    LD_LIBRARY_PATH='' TRUNKLINE_RUNTIME_DIR="$scratch/runtime" timeout 120 "$programs/trunkline-demo" --tree "$scratch/tree" --calls 100 \
        --json "$scratch/fallback.json" >"$scratch/fallback.log" 2>&1 && report_has "$scratch/fallback.json" provider=softrdma mismatches=0
    verdict rdma-core-auto-falls-back $? "$(tail -n 3 "$scratch/fallback.log")"
fi

# serve NAME COMMAND...: starts a server in the background that prints its address. Sets $served to the address and $server to
# the process id.
serve() {
    local name=$1 line
    shift
    # Not with on_drop_in: it would run in a subshell, whose process id is not the server's.
    exec {said}< <("${drop_in[@]}" "$@" 2>"$scratch/$name.err" & echo $!; wait)
    read -rt 30 -u "$said" server && read -rt 30 -u "$said" line && served=${line#listening } && [[ -n $served ]]
}

kv() {
    local client=("$programs/kv-client" --address "$other" --provider require) got
    if ! serve kv "$programs/kv-server" --listen "$address:0" --provider require; then
        fail rdma-core-kv "the server does not listen: $(tail -n 3 "$scratch/kv.err")"
        return
    fi
    check rdma-core-kv-put 30 "${client[@]}" --server "$served" put colour green
    got=$(on_drop_in timeout 30 "${client[@]}" --server "$served" get colour 2>&1)
    [[ $got == green ]]
    verdict rdma-core-kv $? "got $got"
    kill -TERM "$server"
    exec {said}<&-
}
kv

# last_line_matches SECONDS FILE PATTERN: waits until the last line of the file matches.
last_line_matches() {
    local tries=$(($1 * 10))
    until tail -n 1 "$2" | grep -qE "$3"; do
        ((tries-- > 0)) || return 1
        sleep 0.1
    done
}

# The device is removed while a server and a client use it, as by `rdma link delete`, and comes back. Acknowledged values stay
# valid. Without this check, the removal path of the adapter could be tested only on a kernel.
removal() {
    local log=$scratch/removal.log load
    if ! TRUNKLINE_REMOVABLE=on serve removal "$programs/kv-server" --listen "$address:0" --pollers 2 --provider require; then
        fail rdma-core-removal "the server does not listen: $(tail -n 3 "$scratch/removal.err")"
        return
    fi
    TRUNKLINE_REMOVABLE=on on_drop_in timeout 90 "$programs/kv-client" --address "$other" --provider require --server "$served" \
        load --for 15 --json >"$log" 2>&1 &
    load=$!
    last_line_matches 20 "$log" '"ok":[1-9]' &&
        on_drop_in "$programs/trunkctl" device remove && last_line_matches 10 "$log" '"device":"away"' &&
        on_drop_in "$programs/trunkctl" device restore && last_line_matches 20 "$log" '"device":"there","incarnations":2'
    verdict rdma-core-removal-comes-back $? "$(tail -n 2 "$log")"
    wait "$load" && last_line_matches 0 "$log" '"unavailable":[1-9].*"wrong":0,.*"incarnations":2'
    verdict rdma-core-removal $? "$(tail -n 2 "$log")"
    kill -TERM "$server"
    exec {said}<&-
}
removal

feed() {
    local client=("$programs/feed" --address "$other" --provider require) got
    if ! serve feed "$programs/feed-serve" --listen "$address:0" --provider require; then
        fail rdma-core-feed "the server does not listen: $(tail -n 3 "$scratch/feed.err")"
        return
    fi
    on_drop_in timeout 30 "${client[@]}" --server "$served" emit here >"$scratch/emit.log" 2>&1 <<<$'one\ntwo\nthree'
    got=$(on_drop_in timeout 30 "${client[@]}" --server "$served" totals 2>&1)
    [[ $got == "here 3 0" ]]
    verdict rdma-core-feed $? "the server counted: $got; $(tail -n 3 "$scratch/emit.log")"
    kill -TERM "$server"
    exec {said}<&-
}
feed

exit "$check_status"
