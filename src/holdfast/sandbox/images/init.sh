#!/bin/busybox sh
# PID 1 of the initrd: loads the modules, puts the root file system together and hands over to the host's program.
#
# The host appends an archive with the directory /holdfast at each start. Disks are found by their serial numbers:
# `root` is the image, `disk` what the machine writes to. Whatever fails is said on the console, and the machine ends.

export PATH=/bin
umask 022

fail() {
    echo "holdfast: $1" >/dev/console
    sync
    poweroff -f
    sleep 60 # (PID 1 may not end: the kernel would panic)
}

/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /lower /upper /new
mount -t proc -o nosuid,nodev,noexec proc /proc || fail "cannot mount /proc"
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys || fail "cannot mount /sys"
# (The kernel has mounted it where it is configured to.)
[ -c /dev/null ] || mount -t devtmpfs -o nosuid devtmpfs /dev || fail "cannot mount /dev"

for module in /modules/*.ko; do
    # What is missing is said below by what needs it; a module for other hardware is no failure.
    insmod "$module" 2>/dev/null || echo "holdfast: ${module##*/} was not loaded" >/dev/console
done

find_disk() {
    for block in /sys/block/*; do
        [ -e "$block/serial" ] && [ "$(cat "$block/serial")" = "$1" ] && echo "/dev/${block##*/}" && return
    done
}

root=
tries=0
while [ -z "$root" ]; do
    root=$(find_disk root)
    [ -n "$root" ] || { tries=$((tries + 1)); [ $tries -lt 100 ] || fail "there is no disk with the serial number root"; usleep 100000; }
done
mount -t squashfs -o ro "$root" /lower || fail "cannot mount the image's root file system"
disk=$(find_disk disk)
if [ -n "$disk" ]; then
    mount -t ext4 "$disk" /upper || fail "cannot mount the machine's disk"
else
    mount -t tmpfs -o mode=0755 tmpfs /upper || fail "cannot mount a file system in memory"
fi
mkdir -p /upper/upper /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work overlay /new || fail "cannot mount the root file system"

[ -f /holdfast/guest_init.py ] || fail "the host has given no program to start"
mkdir -p /new/dev /new/proc /new/sys /new/run || fail "cannot write to the root file system"
mount -t tmpfs -o nosuid,nodev,mode=0755 tmpfs /new/run || fail "cannot mount /run"
cp -a /holdfast /new/run/holdfast || fail "cannot copy what the host has given: there is too little memory"

python=
for directory in /usr/local/bin /usr/bin /bin; do
    # (A link that is absolute leads elsewhere from here.)
    if [ -x "/new$directory/python3" ] || [ -L "/new$directory/python3" ]; then
        python=$directory/python3
        break
    fi
done
[ -n "$python" ] || fail "the image has no python3"
for directory in dev proc sys; do
    mount --move "/$directory" "/new/$directory" || fail "cannot move /$directory"
done
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec /bin/busybox switch_root -c /dev/console /new "$python" /run/holdfast/guest_init.py
