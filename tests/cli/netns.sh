# SPDX-License-Identifier: MIT
# SPDX-FileCopyrightText: The sherd authors
#
# Sourced by the tests with several hosts, in place of lib.sh, which it brings: hosts a and b are the network
# namespaces sherd-$$-a and sherd-$$-b, with the addresses 10.77.0.1 and 10.77.0.2 and a cable between them. Ends the
# test as skipped where that cannot be had. The hosts and all that runs on them are gone when the test leaves.

. "$(dirname "$0")/signals.sh"
[ "$(id -u)" -eq 0 ] || { echo "network namespaces need root"; exit 77; }
ip netns add "sherd-$$-a" 2>/dev/null || { echo "network namespaces cannot be made here"; exit 77; }
. "$(dirname "$0")/lib.sh"
remove_hosts() {
    local host
    for host in a b; do
        ip netns pids "sherd-$$-$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null
        ip netns del "sherd-$$-$host" 2>/dev/null
    done
}
trap 'remove_hosts; leave' EXIT
ip netns add "sherd-$$-b"
ip link add eth0 netns "sherd-$$-a" type veth peer name eth0 netns "sherd-$$-b" 2>/dev/null ||
    { echo "there are no virtual cables here"; exit 77; }
for host in a b; do
    [ $host = a ] && number=1 || number=2
    ip -n "sherd-$$-$host" addr add "10.77.0.$number/24" dev eth0
    ip -n "sherd-$$-$host" link set lo up
    ip -n "sherd-$$-$host" link set eth0 up
done
