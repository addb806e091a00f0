# The project's own programs for the guest, built with the feature rdma-core; sourced by run.sh, after common.bash.
#
# A group says in comments which it needs: "# carries: PACKAGE/PROGRAM ...", "PACKAGE/examples/PROGRAM" or "PACKAGE/tests/NAME".

binaries=() # files to carry in

# carried GROUP: what it needs, one a line.
carried() { sed -nE 's/^# carries: //p' "$1" | tr -s ' ' '\n'; }

# build_possible NAME: true when the adapter over rdma-core can be compiled; else says the skip of NAME.
build_possible() {
    need "$1" cargo cargo && need "$1" cc gcc && need_file "$1" /usr/include/infiniband/verbs.h libibverbs-dev &&
        need_file "$1" /usr/include/rdma/rdma_cma.h librdmacm-dev &&
        provide "$1" libclang-dev bash -c 'ls /usr/lib/llvm-*/lib/libclang*.so* /usr/lib/*/libclang*.so*'
}

# build_binaries GROUP...: builds what they carry, and puts the files into $binaries.
build_binaries() {
    local item packages=() targets=() tests=()
    binaries=()
    while IFS= read -r item; do
        binaries+=("target/release/${item#*/}")
        if [[ $item == */tests/* ]]; then
            tests+=("$item")
            continue
        fi
        packages+=(--package "${item%%/*}")
        if [[ $item == */examples/* ]]; then targets+=(--example "${item##*/}"); else targets+=(--bin "${item##*/}"); fi
    done < <(for item in "$@"; do carried "$item"; done | sort -u)
    if ((${#packages[@]} > 0)); then
        cargo build --release --locked --quiet --features rdma-core "${packages[@]}" "${targets[@]}" || return
    fi
    for item in "${tests[@]}"; do build_test "$item" || return; done
}

# build_test PACKAGE/tests/NAME: cargo names the program by a hash, so it gets a name of its own.
build_test() {
    local file
    file=$(cargo test --release --locked --quiet --no-run --message-format=json --features rdma-core \
        --package "${1%%/*}" --test "${1##*/}" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    [[ -n $file ]] && install -D "$file" "target/release/${1#*/}"
}
