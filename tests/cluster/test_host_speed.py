"""Which host is slow, or has become so, by the same work on all of them."""

from typing import Any

import numpy as np
import pytest

from raybench.cluster.host_speed import (
    EVERY_S,
    KINDS,
    ROUNDS,
    HostWatch,
    Speed,
    own_speed,
    ray,
    slow_hosts,
)
from raybench.cluster.layout import Node


def speed(seed: int = 0, noise: float = 0.02, taken: float = 0.0, **times: float) -> Speed:
    """Rounds of every kind of work, some so many times as long."""
    rng = np.random.default_rng(seed)
    rounds = {
        kind: list(0.01 * times.get(kind, 1.0) * np.exp(noise * rng.standard_normal(ROUNDS)))
        for kind in KINDS
    }
    return rounds | {"taken": [taken]}


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize(
    ("kind", "taken", "words"),
    [
        ("compute", 0.0, "for arithmetic on one core: look for a throttled clock there."),
        ("compute", 0.4, "other processes or a quota took its core for 40% of that."),
        ("memory", 0.0, "for copies in memory: look for what else uses its memory."),
        ("network", 0.4, "for what it sends to another host: look at its link."),
    ],
)
def test_a_slow_host_is_named_with_factor_and_kind(
    number: int, kind: str, taken: float, words: str
) -> None:
    hosts = {f"host{i}": speed(i) for i in range(1, number)}
    hosts["sick"] = speed(9, taken=taken, **{kind: 1.8})
    ((_, said),) = slow_hosts(hosts).values()
    assert said.startswith("Host sick takes 1.8 times as long as the others for ")
    assert said.endswith(words)


def test_a_lucky_transfer_hides_no_slow_core() -> None:
    one, sick = speed(1), speed(3, compute=1.3)
    one["network"], sick["network"] = [0.010, *[0.012] * 8], [0.016] * 9
    assert "arithmetic" in slow_hosts({"a": one, "sick": sick})["sick"][1]


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_slow_host(seed: int) -> None:
    for noise, times in ((0.02, 1.0), (0.02, 1.05), (0.3, 1.1)):
        sick = speed(seed + 100, noise, compute=times, network=1.2)
        assert slow_hosts({"a": speed(seed, noise), "b": sick}) == {}
    assert slow_hosts({"alone": speed(seed)}) == {}


class Hosts:
    """A session whose hosts take as long as they are told."""

    def __init__(self, **speeds: Any) -> None:
        self.speeds, self.now_s, self.measured = speeds, 0.0, 0
        self.notes: list[str] = []
        self.said: list[str] = []
        self.gone: list[str] = []

    def nodes(self) -> tuple[Node, ...]:
        kinds = {name: "T4" if name.startswith("t4") else "" for name in self.speeds}
        there = [name for name in self.speeds if name not in self.gone]
        return tuple(Node(2, 0, f"id-{name}", name, kinds[name]) for name in there)

    def leave_out(self, names: Any) -> None:
        self.gone += names

    def measure(self, ids: Any) -> dict[str, Speed]:
        self.measured += 1
        if None in self.speeds.values():
            raise ray.exceptions.GetTimeoutError("host a does not answer")
        return {one: self.speeds[one.removeprefix("id-")] for one in ids}

    def watch(self, mode: Any = "note", **given: Any) -> HostWatch:
        own: Any = self
        clock = {"measure": self.measure, "clock": lambda: self.now_s}
        return HostWatch(own, mode, self.said.append, **clock, **given)


def test_strict_leaves_a_slow_host_out_and_note_says_it_alone() -> None:
    hosts = Hosts(a=speed(1), b=speed(2), c=speed(3, compute=1.5))
    hosts.watch("note").look()
    assert (hosts.gone, len(hosts.notes)) == ([], 1)
    hosts.watch("strict").look()
    assert hosts.gone == ["c"]
    assert hosts.notes == hosts.said
    assert hosts.said[1] == f"{hosts.said[0]} No workers are placed there."


def test_where_each_host_is_slow_at_something_the_least_slow_one_stays() -> None:
    hosts = Hosts(a=speed(1, compute=1.4), b=speed(2, network=3.4))
    hosts.watch("strict").look()
    assert hosts.gone == ["b"]
    assert len(hosts.said) == 2
    assert [said.endswith("No workers are placed there.") for said in hosts.said] == [False, True]


def test_what_was_slow_for_a_moment_is_not_said() -> None:
    hosts = Hosts(a=speed(1), b=speed(2), c=speed(3, compute=1.5))
    real = hosts.measure

    def measure(ids: Any) -> dict[str, Speed]:
        found = real(ids)
        hosts.speeds["c"] = speed(4)
        return found

    hosts.measure = measure  # type: ignore[method-assign]
    hosts.watch("strict").look()
    assert (hosts.gone, hosts.said) == ([], [])


def test_hosts_with_other_gpus_are_compared_among_themselves() -> None:
    hosts = Hosts(a=speed(1), b=speed(2), t4=speed(3, compute=1.5), t4s=speed(4, compute=1.5))
    hosts.watch("strict").look()
    assert (hosts.gone, hosts.said) == ([], [])


def test_drift_is_said_once_and_known_of_every_run() -> None:
    hosts = Hosts(a=speed(1))
    watch = hosts.watch()
    watch.look()
    assert watch.drift_of(["a"]) == 1.0
    hosts.speeds["a"] = speed(2, compute=1.3)
    watch.look()
    assert hosts.measured == 1, "not again at once"
    for _ in range(2):
        hosts.now_s += EVERY_S
        watch.look()
    assert watch.drift_of(["elsewhere", "a"]) == pytest.approx(1.3, rel=0.03)
    assert watch.drift_of(["elsewhere"]) is None
    (said,) = hosts.said
    assert said.startswith("Host a takes 1.3 times as long as at first for arithmetic on one core")
    later = hosts.watch(first=watch.first)
    later.look()
    assert later.drift_of(["a"]) == pytest.approx(1.3, rel=0.03), "in a later session too"


def test_a_host_that_does_not_answer_ends_no_study() -> None:
    hosts = Hosts(a=None)
    hosts.watch().look()
    assert hosts.said == ["Hosts were not probed (host a does not answer)."]


def test_a_host_is_measured_in_rounds() -> None:
    found = own_speed()
    assert [len(found[kind]) for kind in ("compute", "memory")] == [ROUNDS] * 2
    assert all(seconds > 0 for kind in ("compute", "memory") for seconds in found[kind])
    assert 0 <= found["taken"][0] <= 1
