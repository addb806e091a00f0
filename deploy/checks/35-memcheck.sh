#!/usr/bin/env bash
# Valgrind's memcheck over unmodified programs on the drop-in libraries: no errors and no definite leaks, except those caused by
# the programs (memcheck.supp).
#
# deploy/checks/35-memcheck.sh [--list] [PATTERN]: as 30-verbs-programs.sh.
# shellcheck source-path=SCRIPTDIR source=common.bash source=programs.bash
. "$(dirname "$0")/common.bash"
. deploy/checks/programs.bash
choose "$@"
time_up=$((SECONDS + 600))

if ((!listing)); then
    need memcheck valgrind valgrind && need memcheck ibv_xsrq_pingpong ibverbs-utils && need memcheck rdma_xserver rdmacm-utils || exit 0
    if ! why=$(valgrind --quiet true 2>&1); then
        skip memcheck "valgrind does not run here: $(head -n 1 <<<"$why")"
        exit 0
    fi
    places_possible memcheck || exit 0
    enter_places memcheck "$@"
    (in_place near tee /tmp/memcheck.supp) <deploy/checks/memcheck.supp >/dev/null
fi
# Valgrind's findings go to stderr, which must stay empty. Fair scheduling keeps a polling thread from starving the others.
wrapper=(valgrind --quiet --fair-sched=yes --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --num-callers=30
    --error-exitcode=99 --suppressions=/tmp/memcheck.supp)
# ibv_xsrq_pingpong's sends fail after 2.1 seconds without a first response. The program does not detect that and waits
# indefinitely. A peer under memcheck may start that slowly on a busy machine, so these runs come first and have three attempts.
attempts=3
if [[ -z $(nice -n -15 true 2>&1) ]]; then priority=(nice -n -15); fi

for where in one two; do
    run="ibv_xsrq_pingpong -p %p -g 0 -m 1024 -n 50"
    exchange "memcheck-xsrq-pingpong-$where" tcp "$where" 60 "$run" "$run %s"
    exchange "memcheck-xsrq-pingpong-events-$where" tcp "$where" 60 "$run -e" "$run -e %s"
    for type in r x; do
        exchange "memcheck-rdma-xserver-$type-$where" cm "$where" 60 "rdma_xserver -p %p -c $type" "rdma_xclient -s %s -p %p -c $type"
    done
done
run="ibv_xsrq_pingpong -p %p -g 0 -m 1024 -n 20"
exchange memcheck-xsrq-pingpong-clients-one tcp one 90 "$run -c 3" "$run %s" 3
table
exit "$check_status"
