# Functions shared by the checks, which source this file. A check prints one line per item: "pass NAME", "fail NAME: why" or
# "skip NAME: why", and exits with status 1 if an item failed. A skip is not a failure here; .ci/run decides about skips.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
export CI=true
exec </dev/null

check_status=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

pass() { echo "pass $1"; }
skip() { echo "skip $1: $2"; }
fail() {
    echo "fail $1: $2"
    check_status=1
}

# verdict NAME STATUS WHY: prints pass or fail by the status of the preceding command.
verdict() {
    if (($2 == 0)); then pass "$1"; else fail "$1" "$3"; fi
}

# need NAME COMMAND PACKAGE: true if the command exists, after an attempt to install its package; otherwise prints the skip.
need() { provide "$1" "$3" command -v "$2"; }

# need_file NAME FILE PACKAGE: does the same for a file.
need_file() { provide "$1" "$3" test -e "$2"; }

# provide NAME PACKAGE TEST...: true if the test succeeds, after installing the package if necessary; otherwise prints the skip.
provide() {
    local name=$1 package=$2
    shift 2
    if "$@" >/dev/null 2>&1; then return 0; fi
    install_package "$name" "$package" || return 1
    if "$@" >/dev/null 2>&1; then return 0; fi
    skip "$name" "not even with the package $package: $*"
    return 1
}

# install_package NAME PACKAGE: installs the package, or prints why NAME is skipped.
install_package() {
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        skip "$1" "$2 is not installed, and only root may install it, with apt-get"
        return 1
    fi
    if { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$2"; } \
        >"$scratch/apt.log" 2>&1; then return 0; fi
    skip "$1" "apt-get could not install $2: $(tail -n 1 "$scratch/apt.log")"
    return 1
}

# has_libclang: true if bindgen can find a libclang. libclang-cpp is a different library.
has_libclang() {
    local pattern
    for pattern in /usr/lib/llvm-*/lib/libclang{,-[0-9]*}.so* /usr/lib/*/libclang{,-[0-9]*}.so*; do
        if [[ -e $pattern ]]; then return 0; fi
    done
    return 1
}

# The programs that checks run, built by README's test command, so that nothing is compiled twice.
export programs=${CARGO_TARGET_DIR:-target}/debug

# build: builds these programs before anything is timed or moved into a namespace without network.
build() { cargo test --workspace --locked --no-run --quiet; }

# build_rigs: builds the programs that attack, which only these checks use.
build_rigs() { cargo build --locked --quiet --package trunkline-testkit --features rigs --examples; }

# drop_in: links the drop-in libraries in target/dropin from the static library that was built with the programs.
drop_in() {
    local library newest=
    build || return
    for library in "$programs"/deps/libtrunkline_dropin-*.a; do
        if [[ -z $newest || $library -nt $newest ]]; then newest=$library; fi
    done
    "$programs/trunkline-dropin" --library "$newest"
}

# A small tree, so that a capture of the demo stays small: empty, one byte, one packet, many packets, one READ.
small_tree() {
    mkdir -p "$1/folder"
    : >"$1/empty"
    printf x >"$1/one-byte"
    head -c 1000 /dev/urandom >"$1/folder/one-packet"
    head -c 16000 /dev/urandom >"$1/folder/segments"
    head -c 300000 /dev/urandom >"$1/rendezvous"
}

# report_has FILE KEY=VALUE...: true if the demo's JSON report contains these pairs. Its keys are unique, so a pattern suffices.
report_has() {
    local file=$1 pair
    shift
    [[ -s $file ]] || return 1
    for pair in "$@"; do
        grep -qE "\"${pair%%=*}\": *\"?${pair#*=}\"?[,} ]*\$" <(tr "," "\n" 2>/dev/null <"$file") || return 1
    done
}
