#!/usr/bin/env bash
# rdma-core's tests, as Debian ships them with pyverbs, on the drop-in libraries. They skip features that a device does not
# report; the list below names the tests that must not be skipped.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

shipped=/usr/share/doc/rdma-core/tests
python=/usr/bin/python3 # the interpreter of Debian's module
modules=(test_device test_addr test_pd test_mr test_cq. test_cqex test_cq_events test_qp. test_qpex test_atomic test_relaxed_ordering test_fork)
wanted=(
    test_rc_traffic_cq_ex test_xrc_traffic_cq_ex test_cq_events_rc
    test_qp_ex_rc_send test_qp_ex_rc_rdma_read test_qp_ex_rc_rdma_write_imm test_qp_ex_rc_atomic_cmp_swp
    test_qp_ex_xrc_send test_qp_ex_xrc_send_imm
    test_atomic_invalid_rkey test_xrc_atomic_cmp_and_swap test_xrc_atomic_fetch_and_add
    test_ro_rc_traffic test_ro_xrc_traffic
)

if ! "$python" -c 'import pyverbs.device' 2>/dev/null || [[ ! -d $shipped ]]; then
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-pyverbs; } >"$scratch/apt.log" 2>&1
    fi
fi
if ! "$python" -c 'import pyverbs.device' 2>"$scratch/import.log" || [[ ! -d $shipped ]]; then
    skip pyverbs "python3-pyverbs with its tests is not installed: $(tail -n 1 "$scratch/import.log")"
    exit 0
fi
if ! drop_in >"$scratch/dropin.log" 2>&1; then
    fail pyverbs-build "the drop-in libraries: $(tail -n 1 "$scratch/dropin.log")"
    exit 1
fi

cp -r "$shipped" "$scratch/tests"
find "$scratch/tests" -name '*.gz' -exec gunzip {} +
export LD_LIBRARY_PATH=$PWD/target/dropin TRUNKLINE_RUNTIME_DIR=$scratch/run
export TRUNKLINE_ADDRESS=127.$((RANDOM % 200 + 20)).$((RANDOM % 250 + 1)).$((RANDOM % 250 + 1))
# Once through shared memory, once by UDP.
for link in auto udp; do
    export TRUNKLINE_LINK=$link
    prefix=pyverbs
    if [[ $link == udp ]]; then prefix=pyverbs-udp; fi
    for module in "${modules[@]}"; do
        log=$scratch/$link-$module.log
        (cd "$scratch" && timeout 120 "$python" -B tests/run_tests.py -v -k "$module" --gid 0) >"$log" 2>&1
        verdict "$prefix-${module%.}" $? "$(grep -E '^(FAIL|ERROR|Error)' "$log" | head -n 1) $(tail -n 1 "$log")"
    done
    for name in "${wanted[@]}"; do
        grep -hqE "^$name .*\.\.\. ok\$" "$scratch/$link"-test_*.log
        verdict "$prefix-$name" $? "it was skipped, or did not run"
    done
done
exit "$check_status"
