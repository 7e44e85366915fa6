#!/bin/busybox sh
# First process of the lab's guest: brings up the kernel's RoCE driver, then runs scripts sent to
# TCP port 2323.
/bin/busybox --install -s /bin
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs tmp /dev/shm
mount -t tmpfs tmp /tmp
mkdir -p /var/run
ulimit -l unlimited
for module in $(cat /lib/modules/order); do
    insmod /lib/modules/$module.ko || echo "insmod $module failed"
done
# iproute2's, which knows nodad and namespaces, not busybox's. Scripts may use it too.
IP=$(find /usr/sbin/ip /usr/bin/ip /sbin/ip /bin/ip -type f 2>/dev/null | head -1)
export IP
$IP link set lo up
NIC=$(ls /sys/class/net | grep -v '^lo$' | head -1)
$IP addr add 198.18.7.2/24 dev $NIC
$IP -6 addr add fd07::2/64 dev $NIC nodad
$IP link set $NIC up
rdma link add rxe0 type rxe netdev $NIC
# rxe drops a packet with a wrong ICRC without a word or a counter: count what its check says (0:
# right).
mount -t tracefs tracing /sys/kernel/tracing
echo 'r64:icrc rxe_icrc_check verdict=$retval:s32' > /sys/kernel/tracing/kprobe_events
echo 'hist:keys=verdict' > /sys/kernel/tracing/events/kprobes/icrc/trigger
nc -ll -p 2323 -e /bin/sh &
until netstat -ltn | grep -q :2323; do usleep 10000; done
echo LAB READY
wait
