#!/usr/bin/env bash
# Programs in containers, in services of a running systemd, and the Kubernetes manifests. Containers run without privileges, with
# podman on the hosts of hosts.bash; their images have the programs and the libraries that these need. All of them run in
# namespaces and store in the scratch folder, so nothing of them is left.
# shellcheck source-path=SCRIPTDIR source=common.bash
. "$(dirname "$0")/common.bash"
# shellcheck source-path=SCRIPTDIR source=hosts.bash
. deploy/checks/hosts.bash

kubernetes_validate=1.37.0

# manifests: validates the manifests against the schemas of Kubernetes that a package of Python has.
manifests() {
    local folder=$scratch/python file
    need manifests python3 python3 && provide manifests python3-pip python3 -m pip --version || return
    if ! python3 -m pip install --quiet --target "$folder" "kubernetes-validate==$kubernetes_validate" >"$scratch/pip.log" 2>&1; then
        skip manifests "pip could not install kubernetes-validate $kubernetes_validate: $(tail -n 1 "$scratch/pip.log")"
        return
    fi
    for file in deploy/*/*.yaml; do
        PYTHONPATH=$folder python3 -W ignore -m kubernetes_validate --strict "$file" >"$scratch/validate.log" 2>&1
        verdict "manifests-${file#deploy/}" $? "$(tail -n 3 "$scratch/validate.log")"
    done
    # A tool that accepts everything would not be noticed.
    sed 's/podSelector/podSelektor/' deploy/kubernetes/orders.yaml >"$scratch/wrong.yaml"
    ! PYTHONPATH=$folder python3 -W ignore -m kubernetes_validate --strict "$scratch/wrong.yaml" >"$scratch/validate.log" 2>&1 &&
        grep -q podSelektor "$scratch/validate.log"
    verdict manifests-wrong $? "a manifest with an unknown field is not refused for it: $(tail -n 3 "$scratch/validate.log")"
}

manifests
if ((EUID != 0)); then
    skip containers "only root can run containers of several hosts"
    exit "$check_status"
fi
prepare_hosts containers
podman=yes services=yes
need containers podman podman && need_file containers-network /usr/lib/podman/netavark netavark && need containers-network iptables iptables || podman=
need services systemd-nspawn systemd-container || services=
# The rows that use these skip without them.
need containers-rootless newuidmap uidmap >/dev/null
need containers-rootless slirp4netns slirp4netns >/dev/null
export podman services

# image: makes the folder of the image, of the programs without their symbols and the libraries that they need.
image() {
    local root=$TMPDIR/image program library
    mkdir -p "$root/bin" "$root/run/trunkline" && chmod 1777 "$root/run/trunkline" || return
    for program in kv-server kv-client trunkctl; do
        strip -o "$root/bin/$program" "/run/programs/$program" || cp "/run/programs/$program" "$root/bin/" || return
    done
    while read -r library; do
        install -D --mode=755 "$library" "$root$library" || return
    done < <(ldd "$root"/bin/* | grep -oE '/[^ ]+\.so[^ ]*' | sort -u)
    printf 'FROM scratch\nCOPY . /\n' >"$TMPDIR/Containerfile"
    head -c 1000000 /dev/urandom >"$TMPDIR/value"
    chmod -R go+rX "$root" "$TMPDIR/Containerfile" "$TMPDIR/value"
}

# engine HOST ARGUMENT...: runs podman on a host, as the user of `as`.
engine() {
    local host=$1
    shift
    on "$host" "${as[@]}" timeout 60 podman --root "$store/root" --runroot "$store/run" --tmpdir "$store/tmp" --storage-driver vfs \
        --cgroup-manager cgroupfs --events-backend none --network-config-dir "$store/networks" "$@"
}

# run HOST OPTION... IMAGE COMMAND...: runs a container as in deploy/kubernetes. Podman would raise the limits, which not all
# hosts allow.
run() {
    local host=$1
    shift
    engine "$host" run --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --read-only --user 10001:10001 \
        --cap-drop all --security-opt no-new-privileges --env TRUNKLINE_RUNTIME_DIR=/run/trunkline/node "$@"
}

# serve HOST NAME ADDRESS OPTION...: starts a server in a container, and waits until a probe in it finds it healthy.
serve() {
    local host=$1 name=$2 address=$3 probe
    shift 3
    run "$host" --detach --name "$name" "$@" kv kv-server --listen "$address" --allow-unauthenticated >/dev/null 2>"$TMPDIR/serve.log" || {
        result="not started: $(tail -n 1 "$TMPDIR/serve.log")"
        return 1
    }
    for probe in {1..150}; do
        if engine "$host" exec "$name" trunkctl health "$address" >"$TMPDIR/health" 2>&1; then return; fi
        if grep -q 'on running containers' "$TMPDIR/health"; then break; fi
        sleep 0.2
    done
    result="not healthy after $probe probes: $(tail -n 1 "$TMPDIR/health"); $(engine "$host" logs "$name" 2>&1 | tail -n 1)"
    return 1
}

# end HOST NAME: ends a server by SIGTERM, and requires that it ends in order.
end() {
    local code
    engine "$1" stop --time 30 "$2" >/dev/null 2>&1
    code=$(engine "$1" inspect --format '{{.State.ExitCode}}' "$2" 2>&1)
    engine "$1" rm --force "$2" >/dev/null 2>&1
    [[ $code == 0 ]]
    verdict "containers-$2-end" $? "the server has ended with status $code"
}

# calls HOST SERVER ADDRESS OPTION...: puts 1 MB and reads it, each by a client in a new container. Sets `result`.
calls() {
    local host=$1 client=(kv kv-client --server "$2" --address "$3" --allow-unauthenticated --timeout-ms 20000)
    shift 3
    if run "$host" --rm --interactive "$@" "${client[@]}" put large <"$TMPDIR/value" >"$TMPDIR/call" 2>&1 &&
        run "$host" --rm "$@" "${client[@]}" get large >"$TMPDIR/got" 2>"$TMPDIR/call" &&
        cmp "$TMPDIR/value" "$TMPDIR/got" >"$TMPDIR/call" 2>&1; then
        result="1 MB put, and read by another client"
    else
        result="no calls: $(tail -n 1 "$TMPDIR/call")"
        return 1
    fi
}

# row NAME HOW: prints a row with `result`. Judges the status of the preceding command.
row() {
    local status=$?
    printf '%s\n    made by     %s\n    result      %s\n' "$1" "$2" "$result"
    verdict "containers-$1" "$status" "$result"
}

# can NAME OPTION...: true if containers run with these options; otherwise prints the skip.
can() {
    local name=$1
    shift
    if run caller --rm "$@" kv trunkctl --version >"$TMPDIR/can" 2>&1; then return; fi
    skip "containers-$name" "podman cannot run such containers here: $(tail -n 1 "$TMPDIR/can")"
    return 1
}

containers() {
    local store=$TMPDIR/store name result shared=$TMPDIR/shared
    if ! engine caller build --quiet --tag kv --file "$TMPDIR/Containerfile" "$TMPDIR/image" >"$TMPDIR/build" 2>&1; then
        skip containers "podman cannot build an image here: $(tail -n 1 "$TMPDIR/build")"
        return
    fi
    ip -n server address add 10.97.2.2/24 dev wire
    if can host --network host; then
        name=host
        serve caller "$name" 10.97.1.1:7000 --network host "${own[@]}" &&
            calls server 10.97.1.1:7000 10.97.2.2 --network host "${own[@]}"
        row "$name" "both on the networks of their hosts"
        end caller "$name"
        name=host-addresses
        serve caller "$name" 127.0.0.1:7000 --network host "${own[@]}" &&
            calls caller 127.0.0.1:7000 127.0.0.2 --network host "${own[@]}"
        row "$name" "both on the network of one host, with an address and a runtime directory each"
        end caller "$name"
        name=host-shared
        mkdir "$shared" && chown 10001:10001 "$shared"
        serve caller "$name" 10.97.1.1:7000 --network host --volume "$shared:/run/trunkline" &&
            calls caller 10.97.1.1:7000 10.97.1.1 --network host --volume "$shared:/run/trunkline"
        row "$name" "both at one address of one host, with a shared runtime directory"
        end caller "$name"
    fi
    if engine caller network create --disable-dns --subnet 10.97.3.0/24 trunkline >"$TMPDIR/network" 2>&1; then
        if can network --network trunkline; then
            name=network
            serve caller "$name" 10.97.3.10:7000 --network trunkline --ip 10.97.3.10 "${own[@]}" &&
                calls caller 10.97.3.10:7000 10.97.3.11 --network trunkline --ip 10.97.3.11 "${own[@]}"
            row "$name" "both in one network of podman"
            end caller "$name"
            calls caller "$outside" 10.97.3.11 --network trunkline --ip 10.97.3.11 "${own[@]}"
            row translated "the client in a network of podman, whose outgoing traffic is masqueraded; the server on another host"
        fi
    else
        skip containers-network "podman cannot make a network here: $(tail -n 1 "$TMPDIR/network")"
    fi
}

# rootless: the containers of a user without rights, who has 65,536 further user ids.
rootless() {
    local store=$TMPDIR/rootless name=rootless-host result file line
    while read -r file line; do
        { cat "/etc/$file" && echo "$line"; } >"$TMPDIR/$file" && chmod 644 "$TMPDIR/$file" && mount --bind "$TMPDIR/$file" "/etc/$file" || {
            skip containers-rootless "no user can be added here"
            return
        }
    done <<END
passwd shop:x:10002:10002::/:/bin/sh
group shop:x:10002:
subuid shop:1000000:65536
subgid shop:1000000:65536
END
    mkdir -p "$store" && chown 10002:10002 "$store"
    local as=(setpriv --reuid=10002 --regid=10002 --clear-groups --
        env --chdir="$store" "HOME=$store" "XDG_RUNTIME_DIR=$store" "TMPDIR=$store" "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
    if ! engine caller build --quiet --tag kv --file "$TMPDIR/Containerfile" "$TMPDIR/image" >"$TMPDIR/build" 2>&1; then
        skip containers-rootless "podman cannot build an image as another user here: $(tail -n 1 "$TMPDIR/build")"
        return
    fi
    if can rootless-host --network host; then
        serve caller "$name" 10.97.1.1:7000 --network host "${own[@]}" &&
            calls caller 10.97.1.1:7000 127.0.0.2 --network host "${own[@]}"
        row "$name" "both of a user without rights, on the network of one host"
        end caller "$name"
    fi
    if can rootless-translated --network slirp4netns; then
        calls caller "$outside" 10.0.2.100 --network slirp4netns "${own[@]}"
        row rootless-translated "the client of a user without rights, in a network of slirp4netns; the server on another host"
    fi
}

# unit: prints the unit of docs/book/src/operate/systemd.md.
unit() { sed -n '/^```ini/,/^```$/p' docs/book/src/operate/systemd.md | grep -v '^```'; }

# services: boots systemd from this machine's /usr, with that unit twice, as two services of one user.
services() {
    local booted=$TMPDIR/booted name
    mkdir -p "$booted/orders.service.d" "$booted/tills.service.d"
    unit | tee "$booted/orders.service" | sed 's/orders/tills/g; s/:7000/:7001/' >"$booted/tills.service"
    for name in orders:7000 tills:7001; do
        printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/kv-server --listen 10.0.0.1:%s --allow-unauthenticated\n' "${name#*:}" \
            >"$booted/${name%:*}.service.d/program.conf"
    done
    printf 'u shop -\n' >"$booted/shop.conf"
    declare -f try_services item | sed '$a try_services >/try/items 2>&1' >"$booted/try.bash"
    cat >"$booted/try.service" <<END
[Service]
Type=oneshot
ExecStart=/bin/bash /try/try.bash
ExecStopPost=/bin/systemctl poweroff --force --force
END
    chmod -R go+rX "$booted"
    : >"$booted/items"
    timeout 120 unshare --cgroup env SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --boot --directory=/ --volatile=yes --register=no \
        --keep-unit --private-network --bind="$booted:/try" --bind-ro="/run/programs:/usr/local/bin" \
        --bind-ro="$booted/shop.conf:/etc/sysusers.d/shop.conf" --bind-ro="$booted/try.service:/etc/systemd/system/try.service" \
        systemd.unit=try.service systemd.firstboot=off >"$booted/boot" 2>&1
    if [[ ! -s $booted/items ]]; then
        skip services "systemd does not boot here: $(grep -v '^ *$' "$booted/boot" | tail -n 1)"
        return
    fi
    cat "$booted/items"
    ! grep -q '^fail ' "$booted/items" && grep -q '^pass services-end' "$booted/items"
    verdict services $? "see the items above"
}

# item NAME COMMAND...: runs a command in the booted system, and prints its verdict.
item() {
    local name=$1
    shift
    if "$@" >/tmp/output 2>&1; then echo "pass services-$name"; else echo "fail services-$name: $* : $(tail -n 1 /tmp/output)"; fi
}

# try_services: runs in the booted system.
try_services() {
    local as=(setpriv --reuid=shop --regid=shop --clear-groups env TRUNKLINE_RUNTIME_DIR=/run/trunkline-shop) port
    put() {
        for port in "$@"; do
            "${as[@]}" kv-client --server "10.0.0.1:$port" --address 10.0.0.1 --allow-unauthenticated --timeout-ms 20000 put "key $port" value || return
        done
    }
    lines() { (($(journalctl --quiet --no-pager --output cat --unit "$1" --grep "$2" | wc -l) == $3)); }
    unable() { ! "$@"; }
    ip link set lo up && ip address add 10.0.0.1/32 dev lo
    ln -s /try/*.service /try/*.service.d /run/systemd/system/ && systemctl daemon-reload
    item start systemctl start orders tills
    item directory test "$(stat -c '%U %a' /run/trunkline-shop)" = "shop 700"
    item calls put 7000 7001
    item restart systemctl restart orders
    item calls-after-restart put 7000 7001
    item stop systemctl stop orders
    item directory-kept test -d /run/trunkline-shop
    item calls-after-stop put 7001
    item stopped unable put 7000
    item start-again systemctl start orders
    item calls-again put 7000 7001
    item kill systemctl kill --signal=KILL tills
    item calls-after-kill put 7000
    item end systemctl stop orders
    journalctl --no-pager --output short --unit orders --unit tills >/try/journal
    item journal-started lines orders '^listening 10.0.0.1:7000' 3
    item journal-healthy lines orders '^serving' 3
    item journal-order unable grep -E 'orders.service: (Failed|Main process exited)' /try/journal
    item journal-kill grep -E 'tills.service: Main process exited, code=killed' /try/journal
}

rows() {
    local as=() own=(--tmpfs /run/trunkline)
    umask 022
    # Podman keeps its locks in /dev/shm, and a cache in /var/lib. Its runtime and systemd need the unified hierarchy of control groups.
    mount -t tmpfs none /dev/shm && mount -t tmpfs none /var/lib && mount -t cgroup2 none /sys/fs/cgroup || {
        skip containers "no control groups can be mounted here"
        return
    }
    image || {
        fail containers-image "the image's folder cannot be made"
        return
    }
    if [[ $podman ]]; then
        local outside=10.97.2.1:7000
        program=kv-server start server server --listen "$outside" --allow-unauthenticated
        containers
        rootless
        stop
    fi
    if [[ $services ]]; then services; fi
}

between_hosts containers 600
exit "$check_status"
