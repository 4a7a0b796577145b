#!/bin/busybox sh
# The first process of a guest: makes the place, runs /script with the second serial port as its terminal, and switches off. What this file
# prints, and what the kernel says, goes to the first serial port.
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do
  insmod "/modules/$module" || echo "insmod $module failed"
done </modules/order
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
stty -F /dev/ttyS1 raw -echo
sh -eu /script </dev/ttyS1 >/dev/ttyS1 2>&1
echo "exit: $?" >/dev/ttyS1
sync
poweroff -f
