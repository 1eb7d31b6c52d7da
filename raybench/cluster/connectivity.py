"""The network interface that a group's workers talk over, tried before training; no Ray.

Gloo and TensorFlow say nothing for minutes, or only that a mesh did not come up. Here every
worker sends its number to every other over the interface that the group will use, and all of
them add up what they heard: an all-reduce of one number, over each pair of hosts in both ways.

Gloo wants one name, NCCL takes names by their beginning unless `=` stands before them, TensorFlow
wants an address of every worker. Left to themselves they guess, each in its own way, and take a
container's bridge or the loopback where a host has several.
"""

import ipaddress
import os
import socket
import time
from contextlib import ExitStack
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
    """Where a worker can be reached by the others of its group."""

    host: str
    interface: str
    address: str
    port: int = 0
    """Of the check before training."""
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
NUMBER_BYTES = 4
UNREACHED = "the workers do not reach each other: "
"""Beginning of the sentence, by which it is found in what Ray makes of an error."""
MISNAMED = f"{UNREACHED}as {VARIABLE} is set, "
"""Beginning of the sentence where trying again cannot help."""

DEAF = "is not reached by another worker"


def opened_at(address: str, size: int) -> socket.socket:
    """Return a socket on a free port of `address` alone, for as many workers."""
    version = ipaddress.ip_address(address).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=size)


def sum_over_workers(
    listener: socket.socket,
    rank: int,
    places: list[Place],
    timeout_s: float = REACH_TIMEOUT_S,
) -> int | str:
    """Return the sum of all ranks + 1, or a sentence where one cannot be reached.

    `places`: of every rank. Closes the listener.
    """
    own, until = places[rank], time.monotonic() + timeout_s
    each_s = max(1.0, timeout_s / len(places))
    total, problem = rank + 1, ""
    with ExitStack() as open_sockets, listener:
        for other, place in enumerate(places):
            if other == rank:
                continue
            try:
                # From the group's interface: another may have a way that Gloo will not take.
                connection = socket.create_connection(
                    (place.address, place.port),
                    timeout=max(0.1, min(each_s, until - time.monotonic())),
                    source_address=(own.address, 0),
                )
                open_sockets.enter_context(connection)
                connection.sendall((rank + 1).to_bytes(NUMBER_BYTES, "big"))
            except OSError as error:
                why = error.strerror or str(error)
                problem = problem or (
                    f"cannot connect to {place.address} of host {place.host} ({why})"
                )
        # Whoever cannot reach one worker listens on: the others must find it.
        for _ in range(len(places) - 1):
            try:
                listener.settimeout(max(0.1, until - time.monotonic()))
                caller = open_sockets.enter_context(listener.accept()[0])
                caller.settimeout(max(0.1, until - time.monotonic()))
                total += int.from_bytes(caller.recv(NUMBER_BYTES, socket.MSG_WAITALL), "big")
            except OSError:
                problem = problem or DEAF
                break
    if not problem:
        return total
    return (
        f"{UNREACHED}host {own.host} on interface {own.interface} ({own.address}) {problem}; open "
        f"the hosts' ports to each other, or name another interface: {VARIABLE}=NAME."
    )


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


def worst(answers: list[int | str]) -> str | None:
    """Return the sentence that says most, of what all ranks have returned; None if all add up."""
    sentences = [answer for answer in answers if isinstance(answer, str)]
    if sentences:
        return min(sentences, key=lambda sentence: DEAF in sentence)
    size = len(answers)
    wrong = [total for total in answers if total != size * (size + 1) // 2]
    return f"{UNREACHED}a sum over {size} workers came out as {wrong[0]}." if wrong else None
