"""Resource scheduler: which trial runs now and on which nodes, in simulations of thousands of
trials and for layouts of one to four nodes."""

import heapq
import random
from collections import Counter
from dataclasses import replace

import pytest

from raybench.cluster.layout import Capacity, Node, lay_out, num_nodes, workers_per_node
from raybench.cluster.scheduler import MAX_OVERTAKEN, ResourceScheduler, missing
from raybench.search.preflight import ASKED_AHEAD
from raybench.spec.errors import ErrorCode
from raybench.spec.run import ResourceRequest
from tests.refusals import refused, shortage_in

WIDTHS = (1, 2, 4, 8)
FRAMEWORKS = ("torch", "tensorflow")


def place(num_workers, framework="torch", **resources):
    return ResourceRequest(framework, num_workers, **resources)


def nodes_of(*sizes):
    return tuple(Node(*size, id=f"id-{n}", name="abcd"[n]) for n, size in enumerate(sizes))


def one_node(cpus, gpus=0, **limits):
    return ResourceScheduler(nodes=nodes_of((cpus, gpus)), **limits)


def split_over_nodes(draw, cpus, gpus, *, at_least):
    """Return one to four nodes that together have room for a group of `at_least` workers."""
    while True:
        count = draw.choice([1, 2, 3, 4])
        node_cpus, node_gpus = [0] * count, [0] * count
        for _ in range(cpus):
            node_cpus[draw.randrange(count)] += 1
        for _ in range(gpus):
            node_gpus[draw.randrange(count)] += 1
        nodes = tuple(zip(node_cpus, node_gpus, strict=True))
        if sum(min(c, g) if gpus else c for c, g in nodes) >= at_least:
            return nodes_of(*nodes)


def run(scheduler, trial, request):
    """Submit a trial that must be granted at once."""
    scheduler.submit(trial, request)
    (grant,) = scheduler.admit()
    assert grant.trial == trial
    return grant


@pytest.mark.parametrize("gpus_per_worker", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_simulated_trials_never_overbook_and_all_finish(seed, gpus_per_worker):
    """Trials of random requests and durations, of which some are cancelled and some crash."""
    draw = random.Random(seed)
    cpus = draw.choice([8, 9, 12, 16, 64])
    gpus = draw.choice([8, 11, 16]) if gpus_per_worker else 0
    scheduler = ResourceScheduler(
        nodes=split_over_nodes(draw, cpus, gpus, at_least=max(WIDTHS)),
        max_workers=draw.choice([4, 8, 12, 10**9]),
        on_cluster=draw.random() < 0.5,
    )
    events = [(draw.uniform(0, 200), str(number), "submit") for number in range(250)]
    events += [(at + 20, trial, "cancel") for at, trial, _ in events if draw.random() < 0.05]
    heapq.heapify(events)
    queue, running, alive, over, overtaken = [], {}, {}, [], Counter()
    while events:
        now, trial, event = heapq.heappop(events)
        if event == "submit":
            width, framework = draw.choice(WIDTHS), draw.choice(FRAMEWORKS)
            scheduler.submit(trial, place(width, framework, gpus_per_worker=gpus_per_worker))
            queue.append(trial)
        elif event == "cancel" and trial in queue:
            scheduler.cancel(trial)
            queue.remove(trial)
            over.append(trial)
        elif event == "end":
            assert scheduler.release(trial) == running.pop(trial)
            over.append(trial)
        elif event == "crash":
            scheduler.remove(running[trial])
            del alive[running.pop(trial)]
            over.append(trial)
        for grant in scheduler.admit():
            if grant.trial != queue[0]:
                assert not grant.is_new, "only a trial for which an idle group exists may overtake"
                overtaken[queue[0]] += 1
            queue.remove(grant.trial)
            assert not {grant.group, *grant.evict} & set(running.values()), "a busy group"
            for group in grant.evict:
                del alive[group]
            assert grant.is_new == (grant.group not in alive)
            assert alive.setdefault(grant.group, grant.request) == grant.request
            running[grant.trial] = grant.group
            ends = "crash" if draw.random() < 0.03 else "end"
            heapq.heappush(events, (now + draw.expovariate(0.1), grant.trial, ends))
        assert {group.trial: group.group for group in scheduler.busy} == running
        assert set(scheduler.reservations) == set(alive)
        assert_not_overbooked(scheduler)
        assert running or not scheduler.waiting, "the queue waits although nothing runs"
    assert len(over) == len(set(over)) == 250
    assert max(overtaken.values(), default=0) <= MAX_OVERTAKEN


def assert_not_overbooked(scheduler):
    groups = scheduler.reservations.values()
    for index, node in enumerate(scheduler.nodes):
        counts = [(group, group.nodes.count(index)) for group in groups]
        holding = [n for group, n in counts if group.trial is not None or scheduler.on_cluster]
        assert sum(holding) <= node.cpus
        gpus = sum(n * group.request.gpus_per_worker for group, n in counts)
        assert gpus <= node.gpus, "idle groups hold theirs, too"
    num_workers = sum(group.request.num_workers for group in groups)
    assert num_workers <= max(scheduler.max_workers, *WIDTHS)


@pytest.mark.parametrize(
    ("gpus", "frameworks", "widths", "at_most"),
    [  # without overtaking and without proposals in advance: 30, 46, 53, 50
        (1, FRAMEWORKS, (1,), 9),
        (4, ["torch"], (1, 2, 4), 18),
        (4, FRAMEWORKS, (1, 2, 4), 28),
        (8, FRAMEWORKS, (1, 2, 4), 23),
    ],
)
def test_search_over_frameworks_and_workers_starts_few_groups(gpus, frameworks, widths, at_most):
    """Mean of 10 searches of 60 trials; `ASKED_AHEAD` trials wait while the cluster is full."""
    starts = 0
    for seed in range(10):
        draw, scheduler = random.Random(seed), one_node(64, gpus)
        num_submitted, running = 0, []
        while num_submitted < 60 or running:
            while num_submitted < 60 and len(running) + len(scheduler.waiting) < gpus + ASKED_AHEAD:
                request = place(draw.choice(widths), draw.choice(frameworks), gpus_per_worker=1)
                scheduler.submit(str(num_submitted), request)
                num_submitted += 1
            grants = scheduler.admit()
            starts += sum(grant.is_new for grant in grants)
            running += [grant.trial for grant in grants]
            scheduler.release(running.pop(draw.randrange(len(running))))
    assert starts / 10 <= at_most


def test_trial_overtakes_only_if_the_head_needs_a_group_to_close_or_end():
    torch, tensorflow = (place(1, name, gpus_per_worker=1) for name in FRAMEWORKS)
    scheduler = one_node(64, gpus=2)
    run(scheduler, "a", torch)
    scheduler.release("a")
    scheduler.submit("head", tensorflow)
    scheduler.submit("same", torch)
    assert [grant.trial for grant in scheduler.admit()] == ["head", "same"], "there is room"
    scheduler.release("same")
    scheduler.submit("wide", place(2, gpus_per_worker=1))
    for number in range(MAX_OVERTAKEN + 1):
        scheduler.submit(str(number), torch)
        overtakes = number < MAX_OVERTAKEN
        assert [grant.trial for grant in scheduler.admit()] == [str(number)] * overtakes
        scheduler.release(str(number))
    scheduler.release("head")
    assert [grant.trial for grant in scheduler.admit()] == ["wide"]


def test_most_recently_used_group_is_reused_first():
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
def test_least_recently_used_idle_group_is_closed(limits, resources):
    scheduler = one_node(**limits)
    old = run(scheduler, "old", place(2, **resources))
    new = run(scheduler, "new", place(2, **resources))
    scheduler.release("new")
    scheduler.release("old")
    grant = run(scheduler, "x", place(1, "tensorflow", **resources))
    assert grant.evict == (new.group,)
    assert old.group in scheduler.reservations


def test_idle_groups_on_a_local_node_are_not_closed():
    scheduler = one_node(cpus=2, on_cluster=False)
    run(scheduler, "a", place(2))
    scheduler.release("a")
    assert run(scheduler, "b", place(2, "tensorflow")).evict == ()
    scheduler.submit("c", place(2))
    assert scheduler.admit() == [], "its group is idle, but the cores are busy"
    scheduler.release("b")
    (grant,) = scheduler.admit()
    assert not grant.is_new


def test_only_groups_that_free_the_needed_resource_are_closed():
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
def test_layout_on_an_empty_cluster(cpus, workers, packed, spread):
    empty = nodes_of(*((num_cpus, 0) for num_cpus in cpus))
    for packing, expected in (("pack", packed), ("spread", spread)):
        nodes = lay_out(place(workers, packing=packing), empty)
        assert workers_per_node(nodes) == expected
        assert num_nodes(place(workers, packing=packing), empty) == len(expected)


TWO_HOSTS = ((2, 0), (2, 0))


@pytest.mark.parametrize(
    ("packing", "free", "empty", "expected"),
    [
        ("pack", ((4, 0), (2, 0)), None, (1, 1)),  # the smaller node with room for both
        ("pack", ((1, 0), (1, 0), (1, 0)), None, (0, 1)),
        ("pack", ((1, 0), (3, 0)), None, (1, 1)),
        ("pack", ((2, 2), (2, 0)), None, (1, 1)),  # GPUs are kept for trials that need them
        ("pack", ((1, 0), (1, 0), (2, 2)), None, (2, 2)),  # unless the group would be split
        ("pack", ((1, 0),), None, None),
        ("pack", ((1, 0), (1, 0)), TWO_HOSTS, None),  # not split: an empty node has room
        ("pack", ((2, 0), (1, 0)), TWO_HOSTS, (0, 0)),
        ("spread", ((2, 0), (0, 0)), TWO_HOSTS, None),  # not put on one node
        ("spread", ((1, 0), (1, 0)), TWO_HOSTS, (0, 1)),
    ],
)
def test_group_gets_as_many_nodes_as_on_an_empty_cluster(packing, free, empty, expected):
    total = None if empty is None else nodes_of(*empty)
    assert lay_out(place(2, packing=packing), nodes_of(*free), total) == expected


def test_fractional_gpus_are_for_runs_of_one_worker():
    scheduler = ResourceScheduler(nodes_of((16, 1)))
    for number in range(11):
        scheduler.submit(str(number), place(1, gpus_per_worker=0.1))
    assert len(scheduler.admit()) == 10, "ten tenths are one GPU"
    assert not scheduler.fits(HALVES)


@pytest.mark.parametrize(
    ("held", "room_for"),
    [
        ([0.5, 0.5], {0.5: True, 1.0: True, 2.0: False}),  # both on one GPU, as in Ray
        # Two free parts of 0.4 cannot hold 0.5 or 1.
        ([0.6, 0.6], {0.5: False, 0.4: True, 1.0: False}),
        ([0.6, 0.4, 0.3], {0.7: True, 0.8: False, 1.0: False}),
    ],
)
def test_fraction_lies_on_one_gpu(held, room_for):
    (node,) = nodes_of((8, 2))
    for fraction in held:
        node = node.without(1, fraction)
    for fraction, fits in room_for.items():
        assert bool(node.room(place(1, gpus_per_worker=fraction))) == fits, fraction


HEAD = ["3 CPUs", "0", "host a", "1", "host b", "2"]
FREE = ["8 CPU", "1 GPU"]


@pytest.mark.parametrize(
    ("nodes", "limits", "requests", "shortages"),
    [
        (
            nodes_of((8, 2), (8, 2)),
            {"taken": [(0, 1), (0, 1)]},
            [place(2, gpus_per_worker=1)],
            {"0": ["2 CPUs", "2 GPUs", *FREE, "host a", *FREE, "host b", "1"]},
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
        (nodes_of((8, 0)), {"max_workers": 2}, [place(2), place(1)], {"1": ["1", "2", "2"]}),
    ],
)
def test_shortage_names_needed_and_free_resources(nodes, limits, requests, shortages):
    scheduler = ResourceScheduler(nodes, **limits)
    for number, request in enumerate(requests):
        scheduler.submit(str(number), request)
    assert len(scheduler.admit()) == len(requests) - len(shortages)
    reported = {trial: shortage_in(sentence) for trial, sentence in missing(scheduler).items()}
    assert reported == shortages


A100, H100 = (replace(nodes_of((4, 2))[0], accelerator=model) for model in ("A100", "H100"))
ON_H100 = place(2, gpus_per_worker=1, accelerator_type="H100")
HALVES = place(2, gpus_per_worker=0.5)


def test_accelerator_type_chooses_the_node():
    assert lay_out(ON_H100, (A100, H100)) == (1, 1)
    assert lay_out(ON_H100, (A100,)) is None


@pytest.mark.parametrize(
    ("capacity", "resources", "code", "names"),
    [
        (
            Capacity((A100,), 0.0),
            ON_H100,
            ErrorCode.NO_ROOM,
            ["num_workers", "H100 GPU", "A100 GPU on host"],
        ),
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
def test_infeasible_request_is_refused_with_available_resources(capacity, resources, code, names):
    with refused(code, *names):
        capacity.refuse_infeasible(resources)
    capacity.refuse_infeasible(place(1))
    replace(capacity, grows=True).refuse_infeasible(place(5))  # an autoscaler may add nodes
