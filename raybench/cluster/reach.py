"""Whether the workers of a group reach each other, tried before training; no Ray, no framework.

Gloo and TensorFlow say nothing for minutes, or only that a mesh did not come up. Here every
worker sends its number to every other over the interface that the group will use, and all of
them add up what they heard: an all-reduce of one number, over each pair of hosts in both ways.
"""

import ipaddress
import socket
import time
from contextlib import ExitStack

from raybench.cluster.addresses import VARIABLE, Place

REACH_TIMEOUT_S = 10.0
NUMBER_BYTES = 4
UNREACHED = "the workers do not reach each other: "
"""Beginning of the sentence, by which it is found in what Ray makes of an error."""
MISNAMED = f"{UNREACHED}as {VARIABLE} is set, "
"""Beginning of the sentence where trying again cannot help."""

DEAF = "is not reached by another worker"


def listen(address: str, size: int) -> socket.socket:
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
    return unreached(own, problem) if problem else total


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


def unreached(place: Place, problem: str) -> str:
    """Return the sentence for the user: the host, the interface, and what to set."""
    return (
        f"{UNREACHED}host {place.host} on interface {place.interface} ({place.address}) "
        f"{problem}; open the hosts' ports to each other, or name another interface: "
        f"{VARIABLE}=NAME."
    )


def worst(answers: list[int | str]) -> str | None:
    """Return the sentence that says most, of what all ranks have returned; None if all add up."""
    sentences = [answer for answer in answers if isinstance(answer, str)]
    if sentences:
        return min(sentences, key=lambda sentence: DEAF in sentence)
    size = len(answers)
    wrong = [total for total in answers if total != size * (size + 1) // 2]
    return f"{UNREACHED}a sum over {size} workers came out as {wrong[0]}." if wrong else None
