#!/bin/busybox sh
# First process of a guest: loads its modules, then runs what comes over the second serial port, or
# a shell for who sits at the first.
/bin/busybox --install -s /bin
export PATH=/usr/bin:/usr/sbin:/bin:/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /var/run
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /tmp
ulimit -l unlimited
# Without a name, librdmacm's programs find no address of their own.
echo 127.0.0.1 localhost > /etc/hosts
ip link set lo up
for module in $(cat /lib/modules/order); do
    insmod /lib/modules/$module.ko || echo "insmod $module failed" > /dev/kmsg
done
if ! grep -qw agent /proc/cmdline; then
    cd /root
    setsid cttyhack sh
    poweroff -f
fi
# Open from here on: what arrives at a closed port is lost.
exec < /dev/ttyS1 > /dev/ttyS1 2>&1
stty raw -echo
echo GUEST READY
# Through a pipe: a shell whose input is a terminal talks back. cat would wait for more than a line.
dd bs=4096 2> /dev/null | sh
