# Payload for a guest with the kernel's soft RoCE (rxe) and the programs of rdma-core: run it as
# root there, with the example `kernel_peer` beside it. rxe serves one end of a veth pair in the
# first network namespace, the software device the other end in a second one, because both want
# UDP port 4791. Ends with status 0 when all three conversations went well.
HERE=$(dirname "$0")
unshare -n sleep 1000 & NS=$!
sleep 0.5
# busybox names the peer itself.
ip link add vs0 type veth peer name vs1
P=$(ls /sys/class/net | grep -vE '^(lo|eth0|vs0)$' | head -1)
ip link set "$P" netns $NS
in_ns() { nsenter -t $NS -n "$@"; }
ip addr add 10.99.0.1/24 dev vs0; ip link set vs0 up
in_ns ip addr add 10.99.0.2/24 dev "$P"; in_ns ip link set "$P" up; in_ns ip link set lo up
rdma link add rxe0 type rxe netdev vs0 || exit 9
sleep 2
KERNEL=10.99.0.1; SOFT=10.99.0.2; fails=0
echo "== rdma_server and our client"
timeout 20 rdma_server & sleep 0.7
in_ns timeout 30 "$HERE/kernel_peer" client $SOFT $KERNEL || fails=$((fails+1))
echo "== rdma_client and our server"
in_ns timeout 30 "$HERE/kernel_peer" server $SOFT & sleep 1
timeout 20 rdma_client -s $SOFT || fails=$((fails+1))
echo "== rping"
timeout 20 rping -s -a $KERNEL -P & sleep 0.7
in_ns timeout 30 "$HERE/kernel_peer" rping $SOFT $KERNEL || fails=$((fails+1))
kill $NS
echo "failures (must be 0): $fails"
[ $fails = 0 ]
