"""The network interface that a group's workers talk over, tried before training; no Ray.

Gloo and TensorFlow say nothing for minutes, or only that a mesh did not come up. Here every
worker connects to every other over the interface that the group will use, so each pair of hosts is
tried in both ways.

Gloo wants one name, NCCL takes names by their beginning unless `=` stands before them, TensorFlow
wants an address of every worker. Left to themselves they guess, each in its own way, and take a
container's bridge or the loopback where a host has several.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass

import psutil

VARIABLE = "RAYBENCH_INTERFACE"
"""Names the interface, on the driver for all hosts or on one host for itself."""
DISCARD_PORT = 9
"""A UDP socket that is connected to it sends nothing; the system only looks up the route."""


class NoInterface(LookupError):  # noqa: N818 (a result that becomes a sentence, not a bug)
    """A host has no such interface, or none on the way to an address; says what it has."""


@dataclass(frozen=True)
class Place:
    """Address at which a worker can be reached by the others of its group."""

    host: str
    interface: str
    address: str
    port: int = 0
    """Port of the check before training."""
    node: str = ""
    """Address by which Ray knows the host: workers that have the same are on one."""


def local_address_to(address: str) -> str:
    """Return the address of this host that packets to `address` leave from."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, DISCARD_PORT))
        except OSError as error:
            raise NoInterface(f"there is no route to {address} ({error.strerror})") from None
        found: str = probe.getsockname()[0]
        return found


def interface_to(address: str) -> str:
    """Return the name of the interface that leads to `address`; NoInterface if none does."""
    own = local_address_to(address)
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.split("%")[0] == own for one in addresses):
            return name
    raise NoInterface(f"no network interface has {own}, which leads to {address}")


def address_of(interface: str) -> str:
    """Return an address of a named interface, IPv4 where it has one; NoInterface otherwise."""
    known = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for one in known.get(interface, []):
            if one.family == family:
                return one.address.split("%")[0]
    raise NoInterface(
        f"there is no network interface {interface} with an address, but {', '.join(known)}"
    )


def place_of(rank_0: str, named: str | None) -> Place:
    """Return how this host is reached in a group whose rank 0 is at the address `rank_0`.

    `named`: the interface that the driver's user named; one named on this host itself goes
    before it. NoInterface where there is none such.
    """
    named = os.environ.get(VARIABLE) or named
    host = socket.gethostname()
    if named:
        return Place(host, named, address_of(named))
    return Place(host, interface_to(rank_0), local_address_to(rank_0))


def environment(place: Place, *, is_named: bool) -> dict[str, str]:
    """Return what tells Gloo and NCCL of the interface; what the host's own says stays, unless
    our user named one."""
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
"""Beginning of the sentence, by which it is found in what Ray makes of an error."""
MISNAMED = f"{UNREACHED}as {VARIABLE} is set, "
"""Beginning of the sentence where trying again cannot help."""


def opened_at(address: str, size: int) -> socket.socket:
    """Return a socket on a free port of `address` alone, which as many workers connect to."""
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=size)


def unreached(rank: int, places: list[Place], timeout_s: float = REACH_TIMEOUT_S) -> str | None:
    """Return a sentence where a worker cannot connect to another; None where it can to all.

    `places`: of every rank, where each listens.
    """
    own = places[rank]
    for other in (*places[:rank], *places[rank + 1 :]):
        try:
            # From the group's interface: another may have a way that Gloo will not take.
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
    """Return a sentence where a host has named what no other host can see; None otherwise."""
    for place in places:
        others = {other.node for other in places} - {place.node}
        if others and ipaddress.ip_address(place.address).is_loopback:
            return (
                f"{MISNAMED}host {place.host} uses {place.interface} ({place.address}), which no "
                f"other host can reach; name one that leads to them: {VARIABLE}=NAME."
            )
    return None
