#!/usr/bin/env bash
# Attacks on running nodes by another host, another user, a peer without a session, and a peer that breaks its rules;
# docs/book/src/why/security.md has what each of them may do. One line for each attack, after those of its claims.
#
# 45-attacks.sh [--packets N] [--seconds N] [--strict] [ATTACK...]: the size of the floods, whether ratios of times are
# judged, which a quiet machine allows, and which attacks; by default small floods, no ratios, and all.
# The full ones: --packets 1000000 --seconds 60 --strict.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

size=()
chosen=()
while (($# > 0)); do
    case $1 in
    --packets | --seconds)
        if ! [[ ${2-} =~ ^[1-9][0-9]*$ ]]; then
            echo "45-attacks.sh: $1 needs a number" >&2
            exit 2
        fi
        size+=("$1" "$2") && shift 2
        ;;
    --strict) size+=("$1") && shift ;;
    --help | -h)
        sed -n '2,/^# The full ones/s/^# \?//p' "$0"
        echo "Attacks:" && sed -nE 's/^(attack|tests) ([a-z-]+) .*/  \2/p' "$0"
        exit 0
        ;;
    -*)
        echo "45-attacks.sh: no option is named $1; --help lists options and attacks" >&2
        exit 2
        ;;
    *)
        if ! [[ $1 =~ ^[a-z-]+$ ]] || ! grep -qE "^(attack|tests) $1 " "$0"; then
            echo "45-attacks.sh: no attack is named $1; --help lists options and attacks" >&2
            exit 2
        fi
        chosen+=("$1") && shift
        ;;
    esac
done

if ! build_rigs; then
    fail attacks-build "the example does not build"
    exit 1
fi
program="$programs/examples/attacks"
# The program of nodes whose service and calls are gRPC.
grpc=target/tonic/debug/examples/attacked
export TMPDIR=$scratch
# An attack creates a folder in here for another user, who must be able to reach it.
chmod 711 "$scratch"
# Time limit of each attack. A full-size attack has floods of some minutes, and compares its nodes with others.
limit_s=280
if ((${#size[@]} > 0)); then limit_s=1500; fi

# wanted NAME: true if the command line chose the attack.
wanted() { ((${#chosen[@]} == 0)) || [[ " ${chosen[*]} " == *" $1 "* ]]; }

if [[ ${#chosen[@]} == 0 || " ${chosen[*]}" == *" grpc-"* ]] &&
    ! cargo build --locked --quiet --manifest-path rpc/tonic/Cargo.toml --workspace --examples --target-dir target/tonic; then
    fail attacks-build "the gRPC node does not build"
    exit 1
fi

# attack NAME ATTACK [OPTION...]: runs an attack, and prints the verdict unless the program has printed a skip.
# The nodes share memory unless TRUNKLINE_LINK is set or the name ends in -udp. Forged packets can reach them only over UDP.
attack() {
    local name=$1 status link=${TRUNKLINE_LINK-}
    shift
    if ! wanted "$name"; then return; fi
    if [[ $1 == forged || $name == *-udp ]]; then link=udp; fi
    TRUNKLINE_LINK=$link timeout "$limit_s" "$program" run "$@" "${size[@]}" 2>"$scratch/errors" | tee "$scratch/claims"
    status=${PIPESTATUS[0]}
    if ((status != 0)); then tail -n 5 "$scratch/errors"; fi
    if ((status == 0)) && grep -q "^skip " "$scratch/claims"; then return; fi
    verdict "attack-$name" "$status" "see the claims above"
}

# tests NAME CARGO-ARGUMENT...: runs tests of a crate; fails if the arguments choose no test.
tests() {
    local name=$1 status
    shift
    if ! wanted "$name"; then return; fi
    timeout "$limit_s" cargo test --locked --quiet "$@" >"$scratch/tests" 2>&1
    status=$?
    if ((status == 0)) && ! grep -qE '[1-9][0-9]* passed' "$scratch/tests"; then status=1; fi
    if ((status != 0)); then tail -n 5 "$scratch/tests"; fi
    verdict "attack-$name" "$status" "cargo test $*"
}

# In the order of the attackers in docs/book/src/why/security.md.
attack forged-packets-xrc forged
attack forged-packets-rc forged --connections rc
attack request-storm storm
attack claimed-restart restart
attack lockout lockout
attack amplifier amplify
attack other-user other-user
attack short-streams short-streams
attack long-calls long-calls
attack unanswered-streams unanswered-streams
attack grpc-short-streams short-streams --nodes "$grpc"
attack grpc-unanswered-streams unanswered-streams --nodes "$grpc"
attack hoarded-credit hoarding
attack full-disk full-disk
attack descriptors descriptors
attack limits limits
attack namespaces namespaces
attack failover failover
attack failover-udp failover
tests shared-copies --package trunkline-verbs --lib copy
tests panicking-waker --package trunkline-machine --lib rings::models::cell
tests panicking-values --package trunkline --test calls panicking
tests nested-values --package trunkline --lib codec::stack
# The same attack with the kernel as the peer: deploy/kernel-lab/run.sh wire-neighbour.
tests foreign-peers --package trunkline-softrdma --test softrdma device::foreign
exit "$check_status"
