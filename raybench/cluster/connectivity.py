"""Choose and test the network interface of a group's workers before training; does not use Ray.

If hosts cannot reach each other, Gloo and TensorFlow hang for minutes without a message, or report
only that a mesh was not established. Therefore every worker first connects to every other worker
over the interface that the group will use, so that each pair of hosts is tested in both directions.

Gloo is configured with the name of an interface, NCCL with prefixes of names (or an exact name
after `=`), and TensorFlow with the addresses of all workers. By default, each library guesses, and
on a host with several interfaces it may choose a container's bridge or the loopback interface.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil

VARIABLE = "RAYBENCH_INTERFACE"
"""Environment variable with the name of the network interface; set on the driver, it applies to all
hosts, and set on one host, only to that host."""
DISCARD_PORT = 9
"""Port for a UDP socket that is only used to look up a route; connecting it sends no packet."""


class NoInterface(LookupError):  # noqa: N818 (a result that becomes a sentence, not a bug)
    """Raised if a host lacks the interface or has no route to an address; the message names it."""


@dataclass(frozen=True)
class Place:
    """Network address at which the other workers of a group reach a worker."""

    host: str
    """Name of the worker's host."""
    interface: str
    """Name of the host's network interface."""
    address: str
    """IP address of the interface."""
    port: int = 0
    """Port on which the worker listens during the test before training."""
    node: str = ""
    """IP address of the host as registered in Ray."""


def route_to(address: str) -> tuple[str, str]:
    """Return the network interface of this host from which packets to `address` are sent, and the
    interface's address; raise NoInterface if there is none."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, DISCARD_PORT))
        except OSError as error:
            raise NoInterface(f"there is no route to {address} ({error.strerror})") from None
        local_address: str = probe.getsockname()[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.split("%")[0] == local_address for entry in entries):
            return name, local_address
    raise NoInterface(
        f"no network interface has the address {local_address}, from which {address} is reached"
    )


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface, or its IPv6 address if it has no other.

    Raises:
        NoInterface: There is no such interface, or it has no address.
    """
    interfaces = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for entry in interfaces.get(interface, []):
            if entry.family == family:
                return entry.address.split("%")[0]
    raise NoInterface(
        f"there is no network interface {interface} that has an address (available: "
        f"{', '.join(interfaces)})"
    )


def find_place(rank_0: str, named: str | None) -> Place:
    """Return host name, network interface and address for a worker on this host.

    Args:
        rank_0: Address of rank 0; by default, the interface that leads there is used.
        named: Interface that the user has set on the driver; None if not set. RAYBENCH_INTERFACE on
            this host takes precedence.

    Raises:
        NoInterface: There is no such interface, or no route to `rank_0`.
    """
    named = os.environ.get(VARIABLE) or named
    host = socket.gethostname()
    if named:
        return Place(host, named, address_of(named))
    return Place(host, *route_to(rank_0))


def interface_variables(place: Place, *, is_named: bool) -> dict[str, str]:
    """Return the environment variables that set the interface for Gloo and NCCL.

    Variables that are already set on this host are left out, so that they keep their values, unless
    the user has chosen the interface (`is_named`).
    """
    name = place.interface
    wanted = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    return {name: value for name, value in wanted.items() if is_named or not os.environ.get(name)}


def replace_hosts(cluster: list[str], places: list[Place]) -> list[str]:
    """Return TensorFlow's list of workers (`host:port` each) with the hosts replaced by the
    addresses of `places`; the ports stay the same."""
    members = []
    for member, place in zip(cluster, places, strict=True):
        host = f"[{place.address}]" if ":" in place.address else place.address
        members.append(f"{host}:{member.rpartition(':')[2]}")
    return members


REACH_TIMEOUT_S = 10.0
"""Timeout in seconds of the test connection from one worker to another."""
UNREACHED = "the workers cannot reach each other: "
"""Prefix of the error message, used to find the message inside an error raised by Ray."""
MISNAMED = f"{UNREACHED}with {VARIABLE} set, "
"""Prefix of the error message if the user has set a wrong interface: a retry would not help."""


def listen_at(address: str, size: int) -> socket.socket:
    """Return a socket that listens on `address` on a free port, with a backlog of `size`."""
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=size)


def connection_problem(rank: int, places: list[Place]) -> str | None:
    """Connect from a rank to all other ranks; return an error message, or None if all answer.

    Args:
        rank: Rank of this worker.
        places: Address and port at which each rank listens, by rank.
    """
    place = places[rank]
    for other in (*places[:rank], *places[rank + 1 :]):
        try:
            # Connect from the interface that the group will use: another interface may have a
            # route, too, but Gloo would not use it.
            socket.create_connection(
                (other.address, other.port), REACH_TIMEOUT_S, source_address=(place.address, 0)
            ).close()
        except OSError as error:
            return (
                f"{UNREACHED}host {place.host} on interface {place.interface} ({place.address}) "
                f"cannot connect to {other.address} of host {other.host} "
                f"({error.strerror or error}); open the hosts' ports to each other, or set "
                f"another interface: {VARIABLE}=NAME."
            )
    return None


def loopback_problem(places: list[Place]) -> str | None:
    """Return an error message if a worker uses a loopback address although there are other hosts;
    otherwise None."""
    for place in places:
        others = {other.node for other in places} - {place.node}
        if others and ipaddress.ip_address(place.address).is_loopback:
            return (
                f"{MISNAMED}host {place.host} uses {place.interface} ({place.address}), which no "
                f"other host can reach; set one with a route to them: {VARIABLE}=NAME."
            )
    return None
