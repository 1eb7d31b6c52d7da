"""Who may run now and on which nodes: the bookkeeping, on thousands of fake trials, and layouts of
one to four nodes."""

import heapq
import random
from collections import Counter
from dataclasses import replace

import pytest

from raybench.cluster.layout import (
    Capacity,
    Node,
    lay_out,
    num_nodes,
    workers_per_node,
)
from raybench.cluster.queue import missing
from raybench.cluster.resource_scheduler import MAX_OVERTAKEN, ResourceScheduler
from raybench.runs.preflight import ASKED_AHEAD
from raybench.spec.errors import ErrorCode
from raybench.spec.run import Placement
from tests.refusals import refused, shortage_in

WIDTHS = (1, 2, 4, 8)
FRAMEWORKS = ("torch", "tensorflow")


def place(num_workers, framework="torch", **resources):
    return Placement(framework, num_workers, **resources)


def nodes_of(*each):
    return tuple(Node(*one, id=f"id-{n}", name="abcd"[n]) for n, one in enumerate(each))


def one_node(cpus, gpus=0, **limits):
    return ResourceScheduler(nodes=nodes_of((cpus, gpus)), **limits)


def split_over_nodes(draw, cpus, gpus, *, at_least):
    """One to four nodes that hold a group of `at_least` workers together when they are empty."""
    while True:
        count = draw.choice([1, 2, 3, 4])
        own_cpus, own_gpus = [0] * count, [0] * count
        for _ in range(cpus):
            own_cpus[draw.randrange(count)] += 1
        for _ in range(gpus):
            own_gpus[draw.randrange(count)] += 1
        nodes = tuple(zip(own_cpus, own_gpus, strict=True))
        if sum(min(c, g) if gpus else c for c, g in nodes) >= at_least:
            return nodes_of(*nodes)


def run(scheduler, trial, given):
    """Submit a trial that must be granted at once."""
    scheduler.submit(trial, given)
    (grant,) = scheduler.admit()
    assert grant.trial == trial
    return grant


class Simulation:
    """Trials of random placements and durations on one cluster; checks itself after every event."""

    def __init__(self, seed, *, gpus_per_worker):
        draw = self.draw = random.Random(seed)
        cpus = draw.choice([8, 9, 12, 16, 64])
        gpus = draw.choice([8, 11, 16]) if gpus_per_worker else 0
        self.scheduler = ResourceScheduler(
            nodes=split_over_nodes(draw, cpus, gpus, at_least=max(WIDTHS)),
            max_workers=draw.choice([4, 8, 12, 10**9]),
            on_cluster=draw.random() < 0.5,
        )
        self.gpus_per_worker = gpus_per_worker
        self.order, self.events, self.cancelled, self.finished = [], [], [], []
        self.running, self.alive = {}, {}
        self.overtaken = Counter()

    def run(self, num_trials):
        for number in range(num_trials):
            asked = self.draw.uniform(0, 200)
            heapq.heappush(self.events, (asked, number, "submit"))
            if self.draw.random() < 0.05:  # has no patience
                heapq.heappush(self.events, (asked + 20, number, "cancel"))
        while self.events:
            now, number, what = heapq.heappop(self.events)
            if what == "submit":
                self.submit(number)
            elif what == "cancel" and number in self.order:
                self.scheduler.cancel(str(number))
                self.order.remove(number)
                self.cancelled.append(number)
            elif what == "crash":
                self.scheduler.remove(self.running[number].group)
                del self.alive[self.running.pop(number).group]
            elif what == "end":
                assert self.scheduler.release(str(number)) == self.running.pop(number).group
            for grant in self.scheduler.admit():
                self.take(now, grant)
            self.check()
        return self

    def submit(self, number):
        given = place(
            self.draw.choice(WIDTHS),
            self.draw.choice(FRAMEWORKS),
            gpus_per_worker=self.gpus_per_worker,
            batch_size_per_worker=number,  # nothing to a group
        )
        self.scheduler.submit(str(number), given)
        self.order.append(number)

    def take(self, now, grant):
        head = self.order[0]
        self.order.remove(int(grant.trial))
        if int(grant.trial) != head:  # first come, first served, unless no group has to start
            assert not grant.is_new
            self.overtaken[head] += 1
        running = {one.group for one in self.running.values()}
        for group in grant.evict:
            assert group not in running, "a group at work was closed"
            del self.alive[group]
        assert grant.is_new == (grant.group not in self.alive)
        if grant.is_new:
            self.alive[grant.group] = grant.placement
        assert self.alive[grant.group] == grant.placement
        assert grant.group not in running, "two trials in one group"
        self.running[int(grant.trial)] = grant
        what = "crash" if self.draw.random() < 0.03 else "end"
        heapq.heappush(self.events, (now + self.draw.expovariate(0.1), int(grant.trial), what))
        self.finished.append(int(grant.trial))

    def check(self):
        busy = [grant.placement for grant in self.running.values()]
        assert {one.trial for one in self.scheduler.busy} == {
            str(number) for number in self.running
        }
        assert set(self.scheduler.reservations) == set(self.alive)
        held = self.alive.values()
        for node, one in enumerate(self.scheduler.nodes):
            cpus, gpus = one.cpus, one.gpus
            groups = [
                (group, group.nodes.count(node), group.trial is not None)
                for group in self.scheduler.reservations.values()
            ]
            assert sum(n for group, n, is_busy in groups if is_busy) <= cpus
            # GPUs are held by idle groups too.
            assert sum(n * group.placement.gpus_per_worker for group, n, _ in groups) <= gpus
            if self.scheduler.on_cluster:
                assert sum(n for _, n, _ in groups) <= cpus
        assert sum(one.num_workers for one in held) <= max(self.scheduler.max_workers, *WIDTHS)
        if not busy:
            assert not self.scheduler.waiting, "an empty cluster lets the head of the queue wait"


@pytest.mark.parametrize("gpus_per_worker", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_thousands_of_trials_never_overbook_and_all_finish(seed, gpus_per_worker):
    simulation = Simulation(seed, gpus_per_worker=gpus_per_worker).run(250)
    assert sorted(simulation.finished + simulation.cancelled) == list(range(250))
    assert max(simulation.overtaken.values(), default=0) <= MAX_OVERTAKEN
    assert not simulation.scheduler.busy
    assert not simulation.scheduler.waiting


@pytest.mark.parametrize(
    ("gpus", "frameworks", "widths", "at_most"),
    [  # for 30, 46, 53, 50 where none overtakes and none is asked for ahead
        (1, FRAMEWORKS, (1,), 9),
        (4, ["torch"], (1, 2, 4), 18),
        (4, FRAMEWORKS, (1, 2, 4), 28),
        (8, FRAMEWORKS, (1, 2, 4), 23),
    ],
)
def test_a_search_over_frameworks_and_workers_starts_few_groups_on_gpus(
    gpus: int, frameworks: list[str], widths: tuple[int, ...], at_most: int
) -> None:
    """Mean of 10 searches of 60 trials, as many at once as the cluster holds and those ahead."""
    starts = 0
    for seed in range(10):
        draw, scheduler = random.Random(seed), one_node(64, gpus)
        asked, running = 0, []
        while asked < 60 or running:
            while asked < 60 and len(running) + len(scheduler.waiting) < gpus + ASKED_AHEAD:
                given = place(draw.choice(widths), draw.choice(frameworks), gpus_per_worker=1)
                scheduler.submit(str(asked), given)
                asked += 1
            granted = scheduler.admit()
            starts += sum(grant.is_new for grant in granted)
            running += [grant.trial for grant in granted]
            scheduler.release(running.pop(draw.randrange(len(running))))
    assert starts / 10 <= at_most


def test_a_trial_overtakes_only_where_others_would_have_to_close_or_end() -> None:
    one, other = (place(1, name, gpus_per_worker=1) for name in FRAMEWORKS)
    scheduler = one_node(64, gpus=2)
    run(scheduler, "a", one)
    scheduler.release("a")
    scheduler.submit("head", other)
    scheduler.submit("same", one)
    assert [grant.trial for grant in scheduler.admit()] == ["head", "same"], "there is room"
    scheduler.release("same")
    scheduler.submit("wide", place(2, gpus_per_worker=1))
    for number in range(MAX_OVERTAKEN + 1):
        scheduler.submit(str(number), one)
        overtakes = number < MAX_OVERTAKEN
        assert [grant.trial for grant in scheduler.admit()] == [str(number)] * overtakes
        scheduler.release(str(number))
    scheduler.release("head")
    assert [grant.trial for grant in scheduler.admit()] == ["wide"]


def test_the_group_used_last_is_reused_first():
    scheduler = one_node(cpus=8)
    run(scheduler, "a", place(2))
    last = run(scheduler, "b", place(2))
    scheduler.release("a")
    scheduler.release("b")
    assert run(scheduler, "c", place(2)).group == last.group


@pytest.mark.parametrize(
    ("limits", "resources"),
    [
        ({"on_cluster": True, "cpus": 4}, {}),
        ({"cpus": 64, "max_workers": 4}, {}),
        ({"cpus": 64, "gpus": 4}, {"gpus_per_worker": 1}),
    ],
    ids=["on_cluster", "max_workers", "gpus"],
)
def test_the_least_recently_used_idle_group_closes(limits, resources):
    scheduler = one_node(**limits)
    old = run(scheduler, "old", place(2, **resources))
    new = run(scheduler, "new", place(2, **resources))
    scheduler.release("new")
    scheduler.release("old")
    grant = run(scheduler, "x", place(1, "tensorflow", **resources))
    assert grant.evict == (new.group,)
    assert old.group in scheduler.reservations


def test_sleeping_groups_of_one_node_need_not_close():
    scheduler = one_node(cpus=2, on_cluster=False)
    run(scheduler, "a", place(2))
    scheduler.release("a")
    assert run(scheduler, "b", place(2, "tensorflow")).evict == ()
    scheduler.submit("c", place(2))
    assert scheduler.admit() == [], "its group is idle, but the cores are taken"
    scheduler.release("b")
    (grant,) = scheduler.admit()
    assert not grant.is_new


def test_only_what_helps_is_closed():
    scheduler = one_node(cpus=8, gpus=2)
    plain = run(scheduler, "plain", place(1))
    gpu = run(scheduler, "gpu", place(2, gpus_per_worker=1))
    scheduler.release("plain")
    scheduler.release("gpu")
    grant = run(scheduler, "x", place(2, "tensorflow", gpus_per_worker=1))
    assert grant.evict == (gpu.group,)
    assert plain.group in scheduler.reservations


@pytest.mark.parametrize(
    ("cpus", "workers", "packed", "spread"),
    [
        ((4, 4), 2, (2,), (1, 1)),
        ((4, 4), 6, (4, 2), (3, 3)),
        ((1, 3), 4, (3, 1), (3, 1)),
        ((4, 1, 4), 5, (4, 1), (2, 2, 1)),
        ((2, 2, 2, 2), 2, (2,), (1, 1)),
    ],
)
def test_workers_of_an_empty_cluster(
    cpus: tuple[int, ...], workers: int, packed: tuple[int, ...], spread: tuple[int, ...]
) -> None:
    empty = nodes_of(*((one, 0) for one in cpus))
    for strategy, expected in (("pack", packed), ("spread", spread)):
        nodes = lay_out(place(workers, strategy=strategy), empty)
        assert nodes is not None
        assert workers_per_node(nodes) == expected
        assert num_nodes(place(workers, strategy=strategy), empty) == len(expected)


TWO_HOSTS = ((2, 0), (2, 0))


@pytest.mark.parametrize(
    ("strategy", "free", "empty", "expected"),
    [
        ("pack", ((4, 0), (2, 0)), None, (1, 1)),  # the smaller hole that holds both
        ("pack", ((1, 0), (1, 0), (1, 0)), None, (0, 1)),
        ("pack", ((1, 0), (3, 0)), None, (1, 1)),
        ("pack", ((2, 2), (2, 0)), None, (1, 1)),  # GPUs are left to those who need them
        ("pack", ((1, 0), (1, 0), (2, 2)), None, (2, 2)),  # unless that tears the group apart
        ("pack", ((1, 0),), None, None),
        ("pack", ((1, 0), (1, 0)), TWO_HOSTS, None),  # not torn apart: a node can hold it
        ("pack", ((2, 0), (1, 0)), TWO_HOSTS, (0, 0)),
        ("spread", ((2, 0), (0, 0)), TWO_HOSTS, None),  # nor pressed together
        ("spread", ((1, 0), (1, 0)), TWO_HOSTS, (0, 1)),
    ],
)
def test_a_group_has_as_many_nodes_as_on_empty_ones(
    strategy: str,
    free: tuple[tuple[int, int], ...],
    empty: tuple[tuple[int, int], ...] | None,
    expected: tuple[int, ...] | None,
) -> None:
    total = None if empty is None else nodes_of(*empty)
    assert lay_out(place(2, strategy=strategy), nodes_of(*free), total) == expected


def test_parts_of_a_gpu_are_for_runs_of_one_worker() -> None:
    scheduler = ResourceScheduler(nodes_of((16, 1)))
    for number in range(11):
        scheduler.submit(str(number), place(1, gpus_per_worker=0.1))
    assert len(scheduler.admit()) == 10, "ten tenths are one GPU"
    assert not scheduler.fits(HALVES)


@pytest.mark.parametrize(
    ("held", "room_for"),
    [
        ([0.5, 0.5], {0.5: True, 1.0: True, 2.0: False}),  # both on one GPU, as Ray puts them
        ([0.6, 0.6], {0.5: False, 0.4: True, 1.0: False}),  # 0.4 + 0.4 are no 0.5, and no 1
        ([0.6, 0.4, 0.3], {0.7: True, 0.8: False, 1.0: False}),
    ],
)
def test_a_part_lies_on_one_gpu(held: list[float], room_for: dict[float, bool]) -> None:
    (node,) = nodes_of((8, 2))
    for part in held:
        node = node.without(1, part)
    for part, fits in room_for.items():
        assert bool(node.room(place(1, gpus_per_worker=part))) == fits, part


HEAD = ["3 CPUs", "0", "host a", "1", "host b", "2"]


@pytest.mark.parametrize(
    ("nodes", "limits", "asked", "said"),
    [
        (
            nodes_of((8, 2), (8, 2)),
            {"taken": [(0, 1), (0, 1)]},
            [place(2, gpus_per_worker=1)],
            {
                "0": [
                    "2 CPUs",
                    "2 GPUs",
                    "8 CPU",
                    "1 GPU",
                    "host a",
                    "8 CPU",
                    "1 GPU",
                    "host b",
                    "1",
                ]
            },
        ),
        (
            nodes_of((2, 0), (1, 0)),
            {"taken": [(2, 0), (0, 0)]},
            [place(3), place(1)],
            {"0": HEAD, "1": ["0", *HEAD]},
        ),
        (
            nodes_of((2, 2), (4, 0)),
            {"taken": [(1, 0), (0, 0)]},
            [place(1, cpus_per_worker=2, gpus_per_worker=1)],
            {"0": ["2 CPUs", "1 GPU", "1 CPU", "2 GPU", "host a", "1"]},
        ),
        (
            nodes_of((8, 0)),
            {"max_workers": 2},
            [place(2), place(1)],
            {"1": ["1", "2", "2"]},
        ),
    ],
)
def test_what_a_group_waits_for(nodes, limits, asked, said) -> None:
    scheduler = ResourceScheduler(nodes, **limits)
    for number, placement in enumerate(asked):
        scheduler.submit(str(number), placement)
    assert len(scheduler.admit()) == len(asked) - len(said)
    assert {trial: shortage_in(why) for trial, why in missing(scheduler).items()} == said


A100, H100 = (replace(nodes_of((4, 2))[0], accelerator=model) for model in ("A100", "H100"))
ON_H100 = place(2, gpus_per_worker=1, accelerator_type="H100")
HALVES = place(2, gpus_per_worker=0.5)


def test_the_type_of_the_gpus_is_chosen() -> None:
    assert lay_out(ON_H100, (A100, H100)) == (1, 1)
    assert lay_out(ON_H100, (A100,)) is None


@pytest.mark.parametrize(
    ("capacity", "placement", "code", "names"),
    [
        (
            Capacity((A100,), 0.0),
            ON_H100,
            ErrorCode.NO_ROOM,
            ["num_workers", "H100 GPU", "A100 GPU on host"],
        ),
        (Capacity(nodes_of((4, 1)), 0.0), HALVES, ErrorCode.CONFLICT, ["gpus_per_worker"]),
        (
            Capacity(nodes_of((2, 0), (2, 0)), 0.0, grows=True),
            HALVES,
            ErrorCode.CONFLICT,
            ["gpus_per_worker"],
        ),
        (
            Capacity(nodes_of((1, 0), (2, 0)), 0.0),
            place(1, cpus_per_worker=3),
            ErrorCode.NO_ROOM,
            ["num_workers", "1 CPU and 0 GPU on host a", "on host b"],
        ),
    ],
)
def test_what_no_cluster_of_now_holds_is_refused_with_what_there_is(
    capacity: Capacity, placement: Placement, code: ErrorCode, names: list[str]
) -> None:
    with refused(code, *names):
        capacity.refuse_infeasible(placement)
    capacity.refuse_infeasible(place(1))
    replace(capacity, grows=True).refuse_infeasible(place(5))  # it may have others by then
