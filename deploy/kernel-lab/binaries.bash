# The project's own programs for the guest, built with the feature rdma-core; sourced by run.sh, after common.bash.
#
# A group lists its programs in comments: "# carries: PACKAGE/PROGRAM ...", "PACKAGE/examples/PROGRAM" or "PACKAGE/tests/NAME".

# carried FILE: prints the programs that the file needs, one per line.
carried() { sed -nE 's/^# carries: //p' "$1" | tr -s ' ' '\n'; }

# build_possible NAME: true if the adapter over rdma-core can be compiled; otherwise prints the skip of NAME.
build_possible() {
    need "$1" cargo cargo && need "$1" cc gcc && need_file "$1" /usr/include/infiniband/verbs.h libibverbs-dev &&
        need_file "$1" /usr/include/rdma/rdma_cma.h librdmacm-dev &&
        provide "$1" libclang-dev has_libclang
}

# binary ITEM: prints the path of a carried program after the build.
binary() { echo "${CARGO_TARGET_DIR:-target}/debug/${1#*/}"; }

# build_binaries FILE...: builds the programs that the files carry. Builds the whole workspace in the profile of tests, like the
# check 60-rdma-core, so that nothing is compiled twice.
build_binaries() {
    local item file
    cargo build --workspace --locked --quiet --features rdma-core --bins --examples || return
    while IFS= read -r item; do
        if [[ $item == */tests/* ]]; then build_test "${item%%/*}" "${item##*/}" "$(binary "$item")" || return; fi
    done < <(for file in "$@"; do carried "$file"; done | sort -u)
}

# build_test PACKAGE NAME PLACE: builds a test program. Cargo adds a hash to its name, so it is copied to a fixed name. Other
# packages may have tests with the same name.
build_test() {
    local file
    file=$(cargo test --workspace --locked --quiet --no-run --message-format=json --features rdma-core --test "$2" |
        grep -F "#$1@" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    [[ -n $file ]] && install -D "$file" "$3"
}
