import heapq
import random

import pytest

from raybench.cluster.admission import Admission
from raybench.cluster.layout import Node, lay_out
from raybench.spec.run import Placement

WIDTHS = (1, 2, 4, 8)
FRAMEWORKS = ("torch", "tensorflow")


def place(num_workers, framework="torch", **resources):
    return Placement(framework, num_workers, **resources)


def nodes_of(*each):
    return tuple(Node(*one, name="abcd"[n]) for n, one in enumerate(each))


def one_node(cpus, gpus=0, **limits):
    return Admission(nodes=nodes_of((cpus, gpus)), **limits)


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


def run(admission, trial, given):
    """Submit a trial that must be granted at once."""
    admission.submit(trial, given)
    (grant,) = admission.admit()
    assert grant.trial == trial
    return grant


class Simulation:
    """Trials of random placements and durations on one cluster; checks itself after every event."""

    def __init__(self, seed, *, gpus_per_worker):
        draw = self.draw = random.Random(seed)
        cpus = draw.choice([8, 9, 12, 16, 64])
        gpus = draw.choice([8, 11, 16]) if gpus_per_worker else 0
        self.admission = Admission(
            nodes=split_over_nodes(draw, cpus, gpus, at_least=max(WIDTHS)),
            max_workers=draw.choice([4, 8, 12, 10**9]),
            idle_holds_cpus=draw.random() < 0.5,
        )
        self.gpus_per_worker = gpus_per_worker
        self.order, self.events, self.cancelled, self.grants = [], [], [], []
        self.running, self.alive = {}, {}

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
                self.admission.cancel(str(number))
                self.order.remove(number)
                self.cancelled.append(number)
            elif what == "crash":
                self.admission.remove(self.running[number].group)
                del self.alive[self.running.pop(number).group]
            elif what == "end":
                assert self.admission.release(str(number)) == self.running.pop(number).group
            for grant in self.admission.admit():
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
        self.admission.submit(str(number), given)
        self.order.append(number)

    def take(self, now, grant):
        assert int(grant.trial) == self.order.pop(0), "first come, first served"
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
        self.grants.append(grant)

    def check(self):
        busy = [grant.placement for grant in self.running.values()]
        at_work = {one.trial for one in self.admission.at_work()}
        assert at_work == {str(number) for number in self.running}
        assert set(self.admission.groups) == set(self.alive)
        held = self.alive.values()
        for node, one in enumerate(self.admission.nodes):
            cpus, gpus = one.cpus, one.gpus
            groups = [
                (group, group.nodes.count(node), group.trial is not None)
                for group in self.admission.groups.values()
            ]
            assert sum(n for group, n, is_busy in groups if is_busy) <= cpus
            # GPUs are held by idle groups too.
            assert sum(n * group.placement.gpus_per_worker for group, n, _ in groups) <= gpus
            if self.admission.idle_holds_cpus:
                assert sum(n for _, n, _ in groups) <= cpus
        assert sum(one.num_workers for one in held) <= max(self.admission.max_workers, *WIDTHS)
        if not busy:
            assert not self.admission.waiting, "an empty cluster lets the head of the queue wait"


@pytest.mark.parametrize("gpus_per_worker", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_thousands_of_trials_never_overbook_and_all_finish(seed, gpus_per_worker):
    simulation = Simulation(seed, gpus_per_worker=gpus_per_worker).run(250)
    finished = [int(grant.trial) for grant in simulation.grants]
    assert sorted(finished + simulation.cancelled) == list(range(250))
    assert simulation.admission.at_work() == simulation.admission.waiting == []


def test_the_simulation_reuses_and_evicts():
    runs = [Simulation(seed, gpus_per_worker=1).run(250) for seed in range(5)]
    grants = [grant for simulation in runs for grant in simulation.grants]
    assert sum(not grant.is_new for grant in grants) > 50
    assert sum(bool(grant.evict) for grant in grants) > 100


def test_a_wide_trial_is_never_overtaken():
    admission = one_node(cpus=8)
    run(admission, "a", place(4))
    admission.submit("wide", place(8))
    admission.submit("narrow", place(1))
    assert admission.admit() == [], "the narrow one has room, but is behind the wide one"
    admission.release("a")
    assert [grant.trial for grant in admission.admit()] == ["wide"]


@pytest.mark.parametrize(
    "other",
    [place(2, "tensorflow"), place(1), place(2, cpus_per_worker=2), place(2, gpus_per_worker=1)],
)
def test_a_group_of_another_placement_is_not(other):
    admission = one_node(cpus=8, gpus=8)
    first = run(admission, "a", place(2))
    admission.release("a")
    second = run(admission, "b", other)
    assert second.is_new
    assert second.group != first.group


def test_the_group_used_last_is_reused_first():
    admission = one_node(cpus=8)
    run(admission, "a", place(2))
    last = run(admission, "b", place(2))
    admission.release("a")
    admission.release("b")
    assert run(admission, "c", place(2)).group == last.group


@pytest.mark.parametrize(
    ("limits", "resources"),
    [
        ({"idle_holds_cpus": True, "cpus": 4}, {}),
        ({"cpus": 64, "max_workers": 4}, {}),
        ({"cpus": 64, "gpus": 4}, {"gpus_per_worker": 1}),
    ],
    ids=["idle_holds_cpus", "max_workers", "gpus"],
)
def test_the_least_recently_used_idle_group_closes(limits, resources):
    admission = one_node(**limits)
    old = run(admission, "old", place(2, **resources))
    new = run(admission, "new", place(2, **resources))
    admission.release("new")
    admission.release("old")
    grant = run(admission, "x", place(1, "tensorflow", **resources))
    assert grant.evict == (new.group,)
    assert old.group in admission.groups


def test_sleeping_groups_of_one_node_need_not_close():
    admission = one_node(cpus=2, idle_holds_cpus=False)
    run(admission, "a", place(2))
    admission.release("a")
    assert run(admission, "b", place(2, "tensorflow")).evict == ()
    admission.submit("c", place(2))
    assert admission.admit() == [], "its group is idle, but the cores are taken"
    admission.release("b")
    (grant,) = admission.admit()
    assert not grant.is_new


def test_nothing_closes_for_a_trial_that_cannot_run_yet():
    admission = one_node(cpus=4, idle_holds_cpus=True)
    run(admission, "a", place(2))
    idle = run(admission, "b", place(1))
    admission.release("b")
    admission.submit("wide", place(4))
    assert admission.admit() == []
    assert idle.group in admission.groups


def test_only_what_helps_is_closed():
    admission = one_node(cpus=8, gpus=2)
    plain = run(admission, "plain", place(1))
    gpu = run(admission, "gpu", place(2, gpus_per_worker=1))
    admission.release("plain")
    admission.release("gpu")
    grant = run(admission, "x", place(2, "tensorflow", gpus_per_worker=1))
    assert grant.evict == (gpu.group,)
    assert plain.group in admission.groups


def test_a_group_wider_than_max_workers_runs_alone():
    admission = one_node(cpus=8, max_workers=2)
    run(admission, "a", place(1))
    admission.submit("wide", place(8))
    assert admission.admit() == []
    admission.release("a")
    (grant,) = admission.admit()
    assert len(grant.evict) == 1
    assert list(admission.groups) == [grant.group]


def test_a_cancelled_trial_leaves_the_queue_and_lets_others_through():
    admission = one_node(cpus=2)
    run(admission, "a", place(1))
    admission.submit("wide", place(2))
    admission.submit("next", place(1))
    admission.cancel("wide")
    assert [grant.trial for grant in admission.admit()] == ["next"]
    admission.cancel("a")
    assert {one.trial for one in admission.at_work()} == {"a", "next"}, (
        "cancel is for waiting trials"
    )


def test_release_of_an_unknown_or_waiting_trial_is_nothing():
    admission = one_node(cpus=1)
    run(admission, "a", place(1))
    admission.submit("b", place(1))
    assert admission.release("nobody") is None
    assert admission.release("b") is None
    assert [one.trial for one in admission.at_work()] == ["a"]


def test_a_crashed_group_gives_its_place_away_and_is_not_reused():
    admission = one_node(cpus=1)
    crashed = run(admission, "a", place(1))
    admission.remove(crashed.group)
    assert run(admission, "b", place(1)).group != crashed.group


@pytest.mark.parametrize(
    ("resources", "most"), [({}, 8), ({"cpus_per_worker": 2}, 4), ({"gpus_per_worker": 1}, 2)]
)
def test_what_can_never_fit_is_not_accepted(resources, most):
    admission = one_node(cpus=8, gpus=2)
    assert admission.fits(place(most, **resources))
    with pytest.raises(AssertionError, match="can never fit"):
        admission.submit("a", place(most + 1, **resources))


def test_workers_are_packed_onto_nodes_that_hold_them():
    """Of six groups that fit the sums, two fit the nodes: the GPUs are where few cores are."""
    admission = Admission(nodes=nodes_of((16, 0), (8, 8)), idle_holds_cpus=True)
    for number in range(6):
        admission.submit(str(number), place(1, cpus_per_worker=4, gpus_per_worker=1))
    assert [grant.trial for grant in admission.admit()] == ["0", "1"]
    assert [group.nodes for group in admission.groups.values()] == [(1,), (1,)]


def test_what_fits_the_sum_of_the_nodes_but_no_node_never_fits():
    nodes = nodes_of((1, 0), (1, 0))
    assert Admission(nodes=nodes).fits(place(2))
    assert not Admission(nodes=nodes).fits(place(1, cpus_per_worker=2))


@pytest.mark.parametrize(
    ("free", "places"),
    [
        (((4, 0), (2, 0)), (1, 1)),  # the smaller hole that holds both
        (((1, 0), (1, 0), (1, 0)), (0, 1)),
        (((1, 0), (3, 0)), (1, 1)),
        (((2, 2), (2, 0)), (1, 1)),  # GPUs are left to those who need them
        (((1, 0),), None),
    ],
)
def test_a_group_stays_together_where_it_can(free, places):
    assert lay_out(place(2), nodes_of(*free)) == places


def test_an_idle_group_does_not_wake_where_its_cores_are_taken():
    admission = Admission(nodes=nodes_of((2, 0), (2, 0)), idle_holds_cpus=False)
    first = run(admission, "a", place(2))
    admission.release("a")
    admission.settle(first.group, (1, 1))  # where Ray really put it
    admission.submit("b", place(2, "tensorflow"))
    (other,) = admission.admit()
    admission.settle(other.group, (1, 1))
    admission.submit("c", place(2))
    assert admission.admit() == []
    admission.release("b")
    assert [grant.group for grant in admission.admit()] == [first.group]
