# The image of the guest: Debian's kernel, and an initramfs of busybox, the kernel's RDMA modules and Debian's verbs programs;
# sourced by run.sh, after deploy/checks/common.bash.
#
# Nothing is compiled, and only the kernel's package is kept between runs: apt-get download fetches it without
# root, and is unpacked below target/kernel-lab. The programs are those of this machine.

image=${TRUNKLINE_LAB_CACHE:-$PWD/target/kernel-lab}
PATH=$PATH:/usr/sbin:/sbin # modprobe is not in an ordinary user's path
libraries=/usr/lib/x86_64-linux-gnu
programs=(bash rdma ip ping setpriv ibv_devices ibv_devinfo ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong ibv_xsrq_pingpong
    rdma_client rdma_server rdma_xclient rdma_xserver rping ucmatose udaddy ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw
    ib_read_lat ib_atomic_lat)
modules=(virtio_pci virtio_net virtio_rng rdma_rxe rdma_ucm ib_umad ib_uverbs crc32_generic crc32-pclmul veth sch_netem)

# image_possible NAME: true if all parts of an image are available; otherwise prints the skip of NAME.
image_possible() {
    if [[ $(uname -m) != x86_64 ]]; then
        skip "$1" "the image exists for x86_64 only, and this is $(uname -m)"
        return 1
    fi
    need "$1" qemu-system-x86_64 qemu-system-x86 && need "$1" busybox busybox-static && need "$1" cpio cpio &&
        need "$1" modprobe kmod && need "$1" setpriv util-linux && need "$1" rdma iproute2 && need "$1" ibv_rc_pingpong ibverbs-utils &&
        need "$1" rdma_server rdmacm-utils && need "$1" ib_send_bw perftest &&
        need_file "$1" /etc/libibverbs.d/rxe.driver ibverbs-providers && provide_kernel "$1"
}

# The most recently downloaded kernel, or else Debian's newest.
provide_kernel() {
    if [[ -s $image/kernel/vmlinuz ]]; then return 0; fi
    need "$1" apt-get apt && need "$1" dpkg-deb dpkg || return 1
    local package fetch=$scratch/kernel
    package=$(kernel_package)
    if [[ -z $package ]] && ((EUID == 0)) && apt-get update >"$scratch/apt.log" 2>&1; then package=$(kernel_package); fi
    mkdir -p "$fetch/tree"
    if [[ -z $package ]] || ! (cd "$fetch" && apt-get download "$package") >"$scratch/apt.log" 2>&1; then
        # The package lists may be out of date.
        if ((EUID == 0)); then apt-get update >>"$scratch/apt.log" 2>&1; fi
        package=$(kernel_package)
        if [[ -z $package ]] || ! (cd "$fetch" && apt-get download "$package") >>"$scratch/apt.log" 2>&1; then
            skip "$1" "apt-get could not download ${package:-linux-image-amd64}: $(tail -n 1 "$scratch/apt.log")"
            return 1
        fi
    fi
    unpack_kernel "$fetch" || {
        skip "$1" "$package has no kernel and modules that could be unpacked"
        return 1
    }
}

kernel_package() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-/ { print $2; exit }'; }

# unpack_kernel DIRECTORY: extracts the files that a guest may need from the package there, and moves them into place in one step.
unpack_kernel() {
    local fetch=$1 tree=$1/tree part patterns=('./boot/vmlinuz-*' './lib/modules/*/modules.*')
    for part in drivers/infiniband drivers/net drivers/virtio drivers/char net crypto arch/x86/crypto lib fs/configfs; do
        patterns+=("./lib/modules/*/kernel/$part/*")
    done
    dpkg-deb --fsys-tarfile "$fetch"/linux-image-*.deb | tar -x -C "$tree" --no-same-owner --wildcards "${patterns[@]}" || return 1
    mv "$tree"/boot/vmlinuz-* "$tree/vmlinuz" && rmdir "$tree/boot" || return 1
    depmod --basedir "$tree" "$(basename "$tree"/lib/modules/*)" || return 1
    mkdir -p "$image"
    rm -rf "$image/kernel"
    # The result of a concurrent run is equivalent.
    cp -a "$tree" "$image/kernel.$$" && { mv -T "$image/kernel.$$" "$image/kernel" 2>/dev/null || rm -rf "$image/kernel.$$"; }
    [[ -s $image/kernel/vmlinuz ]]
}

# make_image: creates $scratch/base.cpio, the archive of the files that all guests share.
make_image() {
    local root=$scratch/base name path
    mkdir -p "$root"/{proc,sys,dev,tmp,run,etc/libibverbs.d,lab,usr/{bin,lib,lib64},var}
    for name in bin lib lib64; do ln -s "usr/$name" "$root/$name"; done
    ln -s usr/bin "$root/sbin" && ln -s bin "$root/usr/sbin"
    carry "$root" "$(command -v busybox)" /usr/bin/busybox || return 1
    while read -r name; do
        [[ $name == busybox ]] || ln -s busybox "$root/usr/bin/$name"
    done < <(busybox --list)
    for name in "${programs[@]}"; do
        path=$(command -v "$name") || continue
        carry "$root" "$path" "/usr/bin/$name" || return 1
    done
    # Files that are opened by name at run time, which ldd does not list.
    for path in "$libraries"/libibverbs/librxe-*.so "$libraries"/{libgcc_s.so.1,libnss_files.so.2}; do
        [[ ! -e $path ]] || carry "$root" "$path" "$path" || return 1
    done
    cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
    echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
    echo 'root:x:0:' >"$root/etc/group"
    echo '127.0.0.1 localhost' >"$root/etc/hosts"
    install -m 755 deploy/kernel-lab/guest/init "$root/init"
    cp deploy/kernel-lab/guest/common.bash "$root/lab/"
    carry_modules "$root" && archive "$root" >"$scratch/base.cpio"
}

carry_modules() {
    local root=$1 tree=$image/kernel version path
    version=$(basename "$tree"/lib/modules/*)
    for name in "${modules[@]}"; do
        modprobe --dirname "$tree" --set-version "$version" --show-depends "$name" 2>/dev/null | awk '$1 == "insmod" { print $2 }'
    done | sort -u | while read -r path; do
        path=${path#"$tree"}
        mkdir -p "$root/usr${path%/*}" && cp "$tree$path" "$root/usr$path"
    done
    cp "$tree/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$root/usr/lib/modules/$version/" && depmod --basedir "$root" "$version"
}

# carry ROOT FILE PLACE: copies a file into the tree, following symbolic links and stripping debug information. Copies the
# libraries of a program too.
carry() {
    local root=$1 file=$2 place=$3 library
    mkdir -p "$root${place%/*}"
    rm -f "$root$place"
    cp -L --preserve=mode "$file" "$root$place" || return 1
    if [[ $(head -c 4 "$file" | tail -c 3) != ELF ]]; then return 0; fi
    strip --strip-debug "$root$place" 2>/dev/null # without binutils the file is only larger
    while read -r library; do
        place=$library
        if [[ $place != /usr/* ]]; then place=/usr$place; fi
        if [[ ! -e $root$place ]]; then
            mkdir -p "$root${place%/*}"
            cp -L --preserve=mode "$library" "$root$place" || return 1
        fi
    done < <(env -u LD_LIBRARY_PATH ldd "$file" 2>/dev/null | sed -nE 's/^(.*=>)?[[:space:]]*(\/[^ ]+) \(.*/\2/p')
}

archive() { (cd "$1" && find . -mindepth 1 | LC_ALL=C sort | cpio --create --format newc --quiet --owner 0:0); }
