#!/usr/bin/env bash
# The C ABI of the drop-in libraries: structures and constants match Debian's headers, exported symbols and their versions
# match the lists, and a program starts on them without a warning about versions.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"

exports=transport/dropin/exports
header=/usr/include/infiniband/verbs.h

# C program that prints a layout file from the headers.
layout_program() {
    echo '#include <rdma/rdma_cma.h>'
    echo '#include <stddef.h>'
    echo '#include <stdio.h>'
    echo 'int main(void) {'
    awk '
        function type(name) { return (name == "ibv_gid" ? "union " : "struct ") name }
        $1 == "sizeof" { printf "printf(\"sizeof %s %%zu\\n\", sizeof(%s));\n", $2, type($2) }
        $1 == "offsetof" { printf "printf(\"offsetof %s %s %%zu\\n\", offsetof(%s, %s));\n", $2, $3, type($2), $3 }
        $1 == "value" { printf "printf(\"value %s %%llu\\n\", (unsigned long long)(unsigned)%s);\n", $2, $2 }
    ' "$1"
    echo 'return 0; }'
}

check_layout() {
    local file name
    for file in "$exports"/layout*.txt; do
        name=abi-$(basename "$file" .txt)
        if ! { layout_program "$file" >"$scratch/layout.c" && cc -o "$scratch/layout" "$scratch/layout.c"; } 2>"$scratch/cc.log"; then
            fail "$name" "the C program of its names does not compile: $(head -n 1 "$scratch/cc.log")"
            continue
        fi
        "$scratch/layout" | diff "$file" - >"$scratch/diff.log"
        verdict "$name" $? "the headers say otherwise: $(head -n 2 "$scratch/diff.log" | tail -n 1)"
    done
}

# exported LIBRARY: its functions and data as NAME@VERSION.
exported() {
    readelf -W --dyn-syms "$1" | awk '$7 != "UND" && ($4 == "FUNC" || $4 == "OBJECT") && $8 ~ /@/ { sub(/@@/, "@", $8); print $8 }' | sort
}

# wanted MAP: the same from a version script.
wanted() {
    awk '
        /\{$/ { version = $1 }
        /^ +[a-z_A-Z0-9]+;$/ { sub(/;/, "", $1); print $1 "@" version }
    ' "$1" | sort
}

check_symbols() {
    local name missing
    for name in libibverbs librdmacm; do
        missing=$(comm -13 <(exported "target/dropin/$name.so.1") <(wanted "$exports/$name.map") | tr '\n' ' ')
        [[ -z $missing ]]
        verdict "abi-symbols-$name" $? "not exported: $missing"
        readelf -d "target/dropin/$name.so.1" | grep -q "Library soname: \[$name.so.1\]"
        verdict "abi-soname-$name" $? "the soname is another"
    done
    ! readelf -d target/dropin/libibverbs.so.1 | grep NEEDED | grep -qE 'ibverbs|rdmacm'
    verdict abi-needed $? "the library needs the one it replaces"
}

# One of Debian's programs on our libraries prints no warning and finds our device.
check_start() {
    need abi-start ibv_devices ibverbs-utils || return
    LD_LIBRARY_PATH=target/dropin ibv_devices >"$scratch/out" 2>"$scratch/err"
    verdict abi-start $? "ibv_devices failed: $(head -n 1 "$scratch/err")"
    [[ ! -s $scratch/err ]]
    verdict abi-start-quiet $? "it said: $(head -n 1 "$scratch/err")"
    grep -q trunkline0 "$scratch/out"
    verdict abi-start-device $? "it lists no trunkline0"
}

need abi-headers cc gcc || exit 0
if [[ ! -f $header || ! -f /usr/include/rdma/rdma_cma.h ]]; then
    if ((EUID == 0)) && command -v apt-get >/dev/null; then
        { apt-get update && apt-get install -y --no-install-recommends libibverbs-dev librdmacm-dev; } >"$scratch/apt.log" 2>&1
    fi
fi
if [[ -f $header && -f /usr/include/rdma/rdma_cma.h ]]; then
    check_layout
else
    skip abi-layout "libibverbs-dev and librdmacm-dev are not installed"
fi
if drop_in >"$scratch/dropin.log" 2>&1; then
    need abi-symbols readelf binutils && check_symbols
    check_start
else
    fail abi-dropin "the drop-in libraries: $(tail -n 1 "$scratch/dropin.log")"
fi
exit "$check_status"
