"""How fast each host is: the same work on all of them at the same time, in a second or two.

All workers wait for one on a slow host, and one that slows down while a study runs makes its later
cells look slow.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybench.cluster.layout import Node
from raybench.cluster.session import Session
from raybench.stats.clock import cpu_use

KINDS = {
    "compute": ("arithmetic on one core", 1.1, "look for a throttled clock there"),
    "memory": ("copies in memory", 1.1, "look for what else uses its memory"),
    "network": ("what it sends to another host", 1.5, "look at its link"),
}
"""Kinds of work: what it is, times the others' seconds from which on a host is off (Ray's own part
of a transfer varies), what to do then."""
TAKEN = "taken"
"""Key beside these: the share of the time in which others had the core."""
ROUNDS, LINK_ROUNDS = 15, 9
SIDE, PRODUCTS = 64, 1000
"""Side of matrices and number of products: no BLAS divides so small a product among threads."""
COPY_BYTES, LINK_BYTES = 32 * 2**20, 4 * 2**20
NOISES = 3.0
"""Standard errors that a host has to be off by as well."""
EVERY_S, ANSWER_S = 180.0, 120.0
"""Between two probes of a study at least; for an answer."""
Speed = dict[str, list[float]]
"""Seconds of each round on a host, by kind of work."""


def own_speed() -> Speed:
    """On a host: measure it, in half a second."""
    ones, product = np.ones((SIDE, SIDE), np.float32), np.empty((SIDE, SIDE), np.float32)
    source, copy = np.ones(COPY_BYTES, np.uint8), np.ones(COPY_BYTES, np.uint8)
    found: Speed = {"compute": [], "memory": []}
    before, start = cpu_use(), time.perf_counter()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(PRODUCTS):
            np.matmul(ones, ones, out=product)
        between = time.perf_counter()
        np.copyto(copy, source)
        found["compute"].append(between - began)
        found["memory"].append(time.perf_counter() - between)
    lasted = time.perf_counter() - start
    return found | {TAKEN: [cpu_use().minus(before).disturbed_s(lasted) / lasted]}


def on_node(node: str, function: Callable[..., Any]) -> Any:
    """Return a function as a task of one node, by Ray's id, which takes no core there."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=there, max_retries=0)(function)


def measure_hosts(ids: Sequence[str]) -> dict[str, Speed]:
    """Measure nodes, by Ray's ids, side by side; RayError where one does not answer."""
    tasks = [on_node(one, own_speed).remote() for one in ids]
    found = dict(zip(ids, ray.get(tasks, timeout=ANSWER_S), strict=True))
    for number in range(1 + LINK_ROUNDS if len(ids) > 1 else 0):
        # A ring: each sends to the one before it and hears from the next.
        sent = ray.get([on_node(one, _put).remote() for one in ids], timeout=ANSWER_S)
        pulls = [on_node(ids[i - 1], _pull).remote(box) for i, box in enumerate(sent)]
        for one, seconds in zip(ids, ray.get(pulls, timeout=ANSWER_S), strict=True):
            if number:  # in the first the connections are made
                found[one].setdefault("network", []).append(seconds)
    return found


def _put() -> list[Any]:
    return [ray.put(np.ones(LINK_BYTES, np.uint8))]


def _pull(box: list[Any]) -> float:
    began = time.perf_counter()
    ray.get(box[0])
    return time.perf_counter() - began


def typical(kind: str, seconds: Sequence[float]) -> float:
    """Return what stands for a kind's rounds: their median; of transfers, which wait for cores and
    for Ray's own part, the quickest."""
    return float(min(seconds) if kind == "network" else np.median(seconds))


def differ(kind: str, slower: Sequence[float], quicker: Sequence[float]) -> bool:
    """Return whether two hosts' rounds differ by more than their spread explains."""
    if kind == "network":
        return min(slower) > KINDS[kind][1] * float(np.median(quicker))
    medians, squares = [], 0.0
    for seconds in (slower, quicker):
        medians.append(float(np.median(seconds)))
        apart = float(np.median(np.abs(np.array(seconds) - medians[-1]))) / medians[-1]
        squares += (1.86 * apart) ** 2 / len(seconds)  # of a median, if they are normal
    return 1 - medians[1] / medians[0] > NOISES * math.sqrt(squares)


def compared(host: str, now: Speed, before: Speed, than: str) -> tuple[float, str]:
    """Return how many times as long a host takes for the work of which that is off most, and what
    is said of it: "" where it is no more than usual, or than the rounds' own spread."""
    worst, said, order = 1.0, "", (False, 1.0)
    for kind, (work, limit, advice) in KINDS.items():
        if kind not in now or kind not in before:
            continue
        times = typical(kind, now[kind]) / typical(kind, before[kind])
        size = max(times, 1 / times)
        slower, quicker = (now, before) if times > 1 else (before, now)
        is_off = size >= limit and differ(kind, slower[kind], quicker[kind])
        # A part that is faster hides none that is slower, nor do a transfer's chances others.
        if (times >= limit, size) <= order or (kind == "network" and not is_off):
            continue
        worst, said, order = times, "", (times >= limit, size)
        if is_off:
            taken = now.get(TAKEN, [0.0])[0]
            if times < 1:
                advice = "it was slowed then"
            elif kind != "network" and taken > (1 - 1 / size) / 2:
                advice = f"other processes or a quota took its core for {taken:.0%} of that"
            said = f"Host {host} takes {times:.2g} times as long as {than} for {work}: {advice}."
    return worst, said


def slow_hosts(measured: Mapping[str, Speed]) -> dict[str, tuple[float, str]]:
    """Return how many times as long each host takes that is slower than the one in the middle of
    its kind of work, the faster of two, and what is said of it."""
    middle: Speed = {}
    for kind in KINDS:
        rows = [one[kind] for one in measured.values() if kind in one]
        rows.sort(key=functools.partial(typical, kind))
        middle |= {kind: rows[(len(rows) - 1) // 2]} if len(rows) > 1 else {}
    found = {name: compared(name, one, middle, "the others") for name, one in measured.items()}
    return {name: (times, said) for name, (times, said) in found.items() if times > 1 and said}


class HostWatch:
    """Probes the hosts of a session before its runs and between them, and says what is off."""

    def __init__(
        self,
        session: Session,
        mode: Literal["note", "strict"],
        say: Callable[[str], None],
        first: Mapping[str, Speed] | None = None,
        *,
        measure: Callable[[Sequence[str]], dict[str, Speed]] = measure_hosts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`mode` strict: no workers are placed on slow hosts. `first`: of an earlier session."""
        self._session, self._mode, self._say = session, mode, say
        self._measure, self._clock = measure, clock
        self.first = dict(first or {})
        """Typical seconds of each host when it was first probed, for `study.yaml`."""
        self._drift: dict[str, float] = {}
        self._said: set[str] = set()
        self._looked_at = -math.inf

    def look(self) -> None:
        """Probe, unless that was a moment ago; no run may train. What is off is said, once, and
        stands in the session's notes."""
        if self._clock() - self._looked_at < EVERY_S:
            return
        self._looked_at = self._clock()
        nodes = {node.id: node for node in self._session.nodes()}
        try:
            measured = self._measured(nodes)
            slow, said = self._slow(nodes, measured), dict[str, str]()
            if slow:  # once more: what others did in that second is no fault of a host
                again = self._slow(nodes, self._measured(nodes))
                slow = {name: found for name, found in again.items() if name in slow}
        except ray.exceptions.RayError as error:  # one goes, or is full: runs will tell
            self._say(f"Hosts were not probed ({str(error).strip().splitlines()[-1]}).")
            return
        for name, speed in measured.items():
            now = {kind: [typical(kind, each)] for kind, each in speed.items()}
            first = self.first.setdefault(name, now)
            self._drift[name], said[f"{name} now"] = compared(name, speed, first, "at first")
        left_out = sorted(slow, key=lambda name: slow[name][0]) if self._mode == "strict" else []
        if len(left_out) == len(nodes):  # each at something: the least slow one stays
            left_out = left_out[1:]
        for name, (_, sentence) in slow.items():
            said[name] = sentence + (" No workers are placed there." if name in left_out else "")
        for key, sentence in said.items():
            if sentence and key not in self._said:
                self._said.add(key)
                self._session.notes.append(sentence)
                self._say(sentence)
        if left_out:
            self._session.leave_out(left_out)

    def _measured(self, nodes: Mapping[str, Node]) -> dict[str, Speed]:
        return {nodes[one].name: speed for one, speed in self._measure([*nodes]).items()}

    def _slow(
        self, nodes: Mapping[str, Node], measured: Mapping[str, Speed]
    ) -> dict[str, tuple[float, str]]:
        found: dict[str, tuple[float, str]] = {}
        for kind in {node.accelerator for node in nodes.values()}:  # others differ by design
            alike = [node.name for node in nodes.values() if node.accelerator == kind]
            found |= slow_hosts({name: measured[name] for name in alike})
        return found

    def drift_of(self, hosts: Sequence[str]) -> float | None:
        """Return how many times as long as at first the slowest of these took at the last probe."""
        return max((self._drift[host] for host in hosts if host in self._drift), default=None)
