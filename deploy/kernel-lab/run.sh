#!/usr/bin/env bash
# The project on the RDMA stack of the Linux kernel, in a virtual machine, from installing packages to a table of verdicts.
#
# deploy/kernel-lab/run.sh [--list | --help] [PATTERN]
#
# PATTERN is a regular expression and chooses checks by their names, which --list prints. A check prints "pass NAME" or
# "fail NAME: why"; a check that this machine can't run prints "skip NAME: why". Status: 0 nothing failed, 1 something failed.
#
# Needs x86_64 with qemu and Debian's packages; as root it installs what is missing. README.md in this directory has the details.
# shellcheck source-path=SCRIPTDIR source=../checks/common.bash
. "$(dirname "$0")/../checks/common.bash"
lab=deploy/kernel-lab
# shellcheck source=image.bash
. "$lab/image.bash"
# shellcheck source=boot.bash
. "$lab/boot.bash"
# shellcheck source=binaries.bash
. "$lab/binaries.bash"

listing=0
pattern=
boots_left=4       # when a guest dies, only the group of checks that was running fails
budget_seconds=600 # for all guests, without compilation

main() {
    local argument
    for argument in "$@"; do
        case $argument in
        --list) listing=1 ;;
        -h | --help) usage && exit 0 ;;
        -*) usage >&2 && exit 2 ;;
        *) pattern=$argument ;;
        esac
    done
    trap 'end_guest; rm -rf "$scratch"' EXIT
    # Without these, bash cleans up at a signal and may then go on.
    trap 'exit 143' TERM HUP
    trap 'exit 130' INT
    choose_groups
    if ((listing)); then
        if ((${#names[@]} > 0)); then printf '%s\n' "${names[@]}"; fi
        exit 0
    fi
    if ((${#names[@]} == 0)); then
        echo "no check's name matches '$pattern'; --list prints the names" >&2
        exit 2
    fi
    image_possible kernel-lab || exit 0
    if ! make_image; then
        fail kernel-lab-image "the initramfs could not be made"
        exit 1
    fi
    bring_binaries
    local began=$SECONDS
    until=$((SECONDS + budget_seconds))
    guest_output=$scratch/output
    : >"$guest_output"
    while ((${#groups[@]} > 0 && boots_left-- > 0 && SECONDS < until)); do run_groups; done
    local file
    for file in "${peers[@]}"; do follow $((until - SECONDS)) env LAB_PATTERN="$pattern" bash "$file"; done
    summary
}

usage() { sed -n '/^# deploy/,/^# Needs/{s/^# \{0,1\}//p}' "$lab/run.sh"; }

# Sets $groups to the files with chosen checks inside guests, $peers to those with a guest as peer, and $names to the checks.
choose_groups() {
    local file
    groups=() peers=()
    for file in "$lab"/guest/[0-9]*.sh; do
        if [[ -n $(names_of "$file") ]]; then groups+=("$file"); fi
    done
    for file in "$lab"/wire/[0-9]*.sh; do
        if [[ -e $file && -n $(names_of "$file") ]]; then peers+=("$file"); fi
    done
    mapfile -t names < <(names_of "${groups[@]}" "${peers[@]}")
}

# names_of GROUP...: prints the chosen checks of these groups.
names_of() {
    local group
    for group in "$@"; do LAB_PATTERN=$pattern bash "$group" --list; done
}

# Builds the programs that the chosen files carry. Leaves out files whose programs can't be built here.
bring_binaries() {
    local file build=()
    for file in "${groups[@]}" "${peers[@]}"; do
        if [[ -n $(carried "$file") ]]; then build+=("$file"); fi
    done
    if ((${#build[@]} == 0)); then return; fi
    if ! build_possible kernel-lab-own; then
        leave_out "${build[@]}"
    elif ! build_binaries "${build[@]}" || { ((${#peers[@]} > 0)) && ! cargo dropin >/dev/null; }; then
        fail kernel-lab-build "the programs could not be built with the feature rdma-core, or the drop-in libraries could not be built"
        exit 1
    fi
}

# leave_out FILE...: removes these files and their checks from the chosen ones.
leave_out() {
    local file left=()
    for file in "${groups[@]}"; do [[ " $* " == *" $file "* ]] || left+=("$file"); done
    groups=("${left[@]}")
    left=()
    for file in "${peers[@]}"; do [[ " $* " == *" $file "* ]] || left+=("$file"); done
    peers=("${left[@]}")
    mapfile -t names < <(names_of "${groups[@]}" "${peers[@]}")
}

# Boots a guest for the remaining groups. If it dies, the groups that it had not begun are left for the next guest.
run_groups() {
    local group left=() options=(-e "LAB_PATTERN=$pattern") item
    while IFS= read -r item; do
        options+=(-c "$(binary "$item"):/lab/bin/${item##*/}")
    done < <(for group in "${groups[@]}"; do carried "$group"; done | sort -u)
    boot_guest -t $((until - SECONDS)) "${options[@]}" "${groups[@]}"
    # The groups that ended are done, and so is the first one that did not.
    local died=0
    for group in "${groups[@]}"; do
        if grep -q "^guest: ${group##*/} ended" "$guest_output"; then continue; fi
        if ((died++ > 0)); then left+=("$group"); fi
    done
    groups=("${left[@]}")
}

# Prints one line per check. A check without a verdict has failed.
summary() {
    local name verdict
    printf '\n%s\n' "== checks: ${#names[@]}, in $((SECONDS - began)) s without compilation"
    for name in "${names[@]}"; do
        verdict=$(grep -E "^(pass|fail|skip) $name(\$|:)" "$guest_output" | tail -n 1)
        case $verdict in
        pass* | skip*) echo "$verdict" ;;
        fail*)
            echo "$verdict"
            check_status=1
            ;;
        *)
            # A file of checks that can't run here reports that once, by the first word of their names.
            if ! grep -q "^skip ${name%%-*}: " "$guest_output"; then fail "$name" "no verdict: the guest died or was stopped before"; fi
            ;;
        esac
    done
    exit "$check_status"
}

main "$@"
