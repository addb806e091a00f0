# boot_guest: runs one virtual machine from start to end. Sourced by run.sh, and by scripts that need a kernel with RDMA as a peer,
# after image.bash. Call make_image first.
#
# boot_guest [OPTIONS] SCRIPT...: boots, runs the scripts as root one after the other, each with bash, and shows their output.
#   -c FILE[:PLACE]    copies a file or directory into the guest, programs with their libraries; PLACE is /lab/NAME by default
#   -e NAME=VALUE      sets a variable for the scripts
#   -t SECONDS         limit for everything, boot included; then the guest is killed       (240)
#   -m MIB             memory                                                              (768)
#   -s NUMBER          processors                                                          (2)
#   -n NETWORK         none, tap:INTERFACE, or what qemu's -netdev takes, without an id    (none)
#   -a ADDRESS/BITS    of eth0 in the guest                                                (10.77.0.1/24)
#   -M MAC             of eth0 in the guest                                                (52:54:00:00:00:01)
#   -p FILE            captures the packets of the guest's network card, except those to itself
# Returns the status of the first script that failed, 124 when time was up, 125 when the guest died. Its output is also in
# $guest_output, if that names a file, and the kernel's messages are in $scratch/kernel.log.
#
# The guest can't outlive this shell: the kernel kills it when its parent ends for any reason. A script that sources this file
# calls end_guest if it is interrupted.

guest=        # process of the running guest, or of the script that boots one
guest_output= # file that also gets what guests print

boot_guest() {
    local seconds=240 memory=768 processors=2 network=none address=10.77.0.1/24 mac=52:54:00:00:00:01 capture=
    local files=() variables=() option OPTIND=1 OPTARG
    while getopts c:e:t:m:s:n:a:M:p: option; do
        case $option in
        c) files+=("$OPTARG") ;;
        e) variables+=("$OPTARG") ;;
        t) seconds=$OPTARG ;;
        m) memory=$OPTARG ;;
        s) processors=$OPTARG ;;
        n) network=$OPTARG ;;
        a) address=$OPTARG ;;
        M) mac=$OPTARG ;;
        p) capture=$OPTARG ;;
        *) return 2 ;;
        esac
    done
    shift $((OPTIND - 1))
    local boot
    boot=$(mktemp -d "$scratch/boot.XXXXXX") || return 125
    load "$boot/tree" "$@" && archive "$boot/tree" >"$boot/over.cpio" && cat "$scratch/base.cpio" "$boot/over.cpio" >"$boot/initrd" || return 125
    rm -rf "$boot/tree" "$boot/over.cpio"
    case $network in
    none) network=hubport,id=net0,hubid=0 ;;
    tap:*) network=tap,id=net0,ifname=${network#tap:},script=no,downscript=no ;;
    *,*) network=${network%%,*},id=net0,${network#*,} ;;
    *) network=$network,id=net0 ;;
    esac
    # Without KVM, so that it runs in any container. The kernel alone uses the first serial line, so that its messages split no
    # other line.
    local arguments=(-accel "tcg,thread=multi" -cpu max -smp "$processors" -m "$memory" -nodefaults -no-user-config -display none -no-reboot
        -kernel "$image/kernel/vmlinuz" -initrd "$boot/initrd"
        -append "console=ttyS0 loglevel=5 panic=-1 nokaslr mitigations=off tsc=unstable random.trust_cpu=on edd=off net.ifnames=0"
        -serial "file:$scratch/kernel.log" -serial stdio
        -netdev "$network" -device "virtio-net-pci,netdev=net0,mac=$mac,romfile=" -device virtio-rng-pci)
    if [[ -n $capture ]]; then arguments+=(-object "filter-dump,id=dump0,netdev=net0,file=$capture"); fi
    follow "$seconds" qemu-system-x86_64 "${arguments[@]}"
    local status=$?
    rm -rf "$boot"
    if ((status == 124 || status == 125)); then
        echo "the guest $( ((status == 124)) && echo "was killed after $seconds s" || echo died); last messages of its kernel:"
        tail -n 20 "$scratch/kernel.log" 2>/dev/null | sed 's/^/    /'
    fi
    return "$status"
}

# load TREE SCRIPT...: adds the files of this guest to the image.
load() {
    local tree=$1 file place variable script
    shift
    mkdir -p "$tree/lab"
    {
        echo "export LAB_ADDRESS=$address"
        for variable in "${variables[@]}"; do printf 'export %s=%q\n' "${variable%%=*}" "${variable#*=}"; done
    } >"$tree/lab/environment"
    for file in "${files[@]}"; do
        place=/lab/$(basename "${file%%:*}")
        if [[ $file == *:* ]]; then place=${file#*:}; fi
        if [[ -d ${file%%:*} ]]; then
            mkdir -p "$tree$place" && cp -rL "${file%%:*}/." "$tree$place/" || return 1
        else
            carry "$tree" "${file%%:*}" "$place" || return 1
        fi
    done
    for script in "$@"; do
        cp "$script" "$tree/lab/" && basename "$script" || return 1
    done >"$tree/lab/scripts"
}

# follow SECONDS COMMAND...: runs a program that ends with this shell at the latest, shows its lines and finds a guest's status
# among them.
follow() {
    local seconds=$1 until=$((SECONDS + $1)) line status=125 console
    shift
    exec {console}< <(exec setpriv --pdeathsig TERM "$@" </dev/null 2>&1)
    guest=$!
    while ((until > SECONDS)); do
        IFS= read -rt $((until - SECONDS)) -u "$console" line || break
        line=${line%$'\r'}
        if [[ $line =~ ^"guest status "([0-9]+)$ ]]; then
            status=${BASH_REMATCH[1]}
            continue
        fi
        printf '%s\n' "$line"
        if [[ -n $guest_output ]]; then printf '%s\n' "$line" >>"$guest_output"; fi
    done
    if ((SECONDS >= until && status == 125)); then status=124; fi
    exec {console}<&-
    end_guest
    return "$status"
}

# Asks the guest to end, which gives a program with guests the chance to end them, and then kills it if necessary.
end_guest() {
    if [[ -z $guest ]]; then return; fi
    local tries
    kill -TERM "$guest" 2>/dev/null
    for ((tries = 0; tries < 30; tries++)); do
        if ! kill -0 "$guest" 2>/dev/null; then break; fi
        sleep 0.1
    done
    kill -KILL "$guest" 2>/dev/null
    wait "$guest" 2>/dev/null
    guest=
}
