"""The network interface of a group's workers, found and tested before training; without Ray.

If hosts cannot reach each other, Gloo and TensorFlow are silent for minutes, or report only that a
mesh was not established. Here every worker connects to every other over the interface that the
group will use, so that each pair of hosts is tested both ways.

Gloo takes one name, NCCL takes prefixes of names unless `=` stands before one, TensorFlow takes
every worker's address. By default they guess, each in its own way, and may choose a container's
bridge or the loopback on a host with several interfaces.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil

VARIABLE = "RAYBENCH_INTERFACE"
"""Environment variable that names the interface, on the driver for all hosts or on one host."""
DISCARD_PORT = 9
"""Port for a UDP socket that only looks up the route: connecting it sends nothing."""


class NoInterface(LookupError):  # noqa: N818 (a result that becomes a sentence, not a bug)
    """A host has no such interface, or no interface with a route to an address; the message says
    which."""


@dataclass(frozen=True)
class Place:
    """Address at which the other workers of the group reach a worker."""

    host: str
    interface: str
    address: str
    port: int = 0
    """Port of the test before training."""
    node: str = ""
    """Ray's address of the host."""


def local_address_to(address: str) -> str:
    """Return this host's source address of packets to `address`."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, DISCARD_PORT))
        except OSError as error:
            raise NoInterface(f"there is no route to {address} ({error.strerror})") from None
        found: str = probe.getsockname()[0]
        return found


def interface_to(address: str) -> str:
    """Return the interface that leads to `address`; NoInterface if none does."""
    own = local_address_to(address)
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.split("%")[0] == own for one in addresses):
            return name
    raise NoInterface(f"no network interface has {own}, which leads to {address}")


def address_of(interface: str) -> str:
    """Return an address of a named interface, IPv4 if it has one; NoInterface if there is no such
    interface."""
    known = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for one in known.get(interface, []):
            if one.family == family:
                return one.address.split("%")[0]
    raise NoInterface(
        f"there is no network interface {interface} with an address, but {', '.join(known)}"
    )


def place_of(rank_0: str, named: str | None) -> Place:
    """Return host name, network interface and address for a worker on this host.

    Args:
        rank_0: address of the worker of rank 0.
        named: interface that the user named on the driver; RAYBENCH_INTERFACE on this host takes
            precedence.

    Raises:
        NoInterface: there is no such interface.
    """
    named = os.environ.get(VARIABLE) or named
    host = socket.gethostname()
    if named:
        return Place(host, named, address_of(named))
    return Place(host, interface_to(rank_0), local_address_to(rank_0))


def environment(place: Place, *, is_named: bool) -> dict[str, str]:
    """Return the variables that tell Gloo and NCCL the interface.

    Variables set in the host's environment are kept, unless the user of raybench has named an
    interface.
    """
    name = place.interface
    wanted = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
    return {name: value for name, value in wanted.items() if is_named or not os.environ.get(name)}


def with_hosts(cluster: list[str], places: list[Place]) -> list[str]:
    """Return TensorFlow's worker list (`host:port` each) with the addresses of `places`."""
    found = []
    for member, place in zip(cluster, places, strict=True):
        host = f"[{place.address}]" if ":" in place.address else place.address
        found.append(f"{host}:{member.rpartition(':')[2]}")
    return found


REACH_TIMEOUT_S = 10.0
UNREACHED = "the workers do not reach each other: "
"""Prefix of the message, by which it is found in an error of Ray's."""
MISNAMED = f"{UNREACHED}as {VARIABLE} is set, "
"""Prefix of the message if trying again cannot help."""


def opened_at(address: str, size: int) -> socket.socket:
    """Return a socket that listens on a free port of `address` for `size` workers."""
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=size)


def unreached(rank: int, places: list[Place], timeout_s: float = REACH_TIMEOUT_S) -> str | None:
    """Connect to the other workers; return a sentence if one cannot be reached.

    Args:
        rank: rank of this worker.
        places: place of every rank, where each listens.
        timeout_s: timeout of each connection.
    """
    own = places[rank]
    for other in (*places[:rank], *places[rank + 1 :]):
        try:
            # From the group's interface: another one may have a route that Gloo does not use.
            socket.create_connection(
                (other.address, other.port), timeout_s, source_address=(own.address, 0)
            ).close()
        except OSError as error:
            return (
                f"{UNREACHED}host {own.host} on interface {own.interface} ({own.address}) cannot "
                f"connect to {other.address} of host {other.host} ({error.strerror or error}); "
                f"open the hosts' ports to each other, or name another interface: {VARIABLE}=NAME."
            )
    return None


def misnamed(places: list[Place]) -> str | None:
    """Return a sentence if an interface is named that no other host can reach."""
    for place in places:
        others = {other.node for other in places} - {place.node}
        if others and ipaddress.ip_address(place.address).is_loopback:
            return (
                f"{MISNAMED}host {place.host} uses {place.interface} ({place.address}), which no "
                f"other host can reach; name one that leads to them: {VARIABLE}=NAME."
            )
    return None
