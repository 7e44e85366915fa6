#!/bin/sh
# In the guest: an rxe device on loopback, and a network without it, since rxe takes the port of
# RoCE wherever it is. IP is iproute2's: busybox's knows no namespaces. Prints the number of the
# device's GID that is an IPv4 address.
rdma link add rxe0 type rxe netdev lo || exit 1
$IP netns add calm && $IP netns exec calm $IP link set lo up || exit 1
cd /sys/class/infiniband/rxe0/ports/1/gids || exit 1
for try in $(seq 100); do
    grep -l 'ffff:7f00:0001$' * 2> /dev/null && exit
    usleep 50000
done
echo "rxe has no GID for 127.0.0.1"
exit 1
