"""Which node every worker goes to, on one to four nodes, packed and spread."""

from dataclasses import replace

import pytest

from raybench.cluster.admission import Admission, Capacity
from raybench.cluster.layout import Node, lay_out, num_nodes, workers_per_node
from raybench.cluster.queue import missing
from raybench.spec.errors import UserError
from raybench.spec.run import Placement


def nodes_of(*each: tuple[float, float]) -> tuple[Node, ...]:
    return tuple(Node(*one, id=f"id-{n}", name="abcd"[n]) for n, one in enumerate(each))


def place(workers: int, strategy: str = "pack", **resources: float) -> Placement:
    return Placement("torch", workers, strategy=strategy, **resources)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cpus", "workers", "packed", "spread"),
    [
        ((4,), 3, (3,), (3,)),
        ((4, 4), 2, (2,), (1, 1)),
        ((4, 4), 6, (4, 2), (3, 3)),
        ((1, 1), 2, (1, 1), (1, 1)),
        ((1, 3), 4, (3, 1), (3, 1)),
        ((2, 2, 2), 3, (2, 1), (1, 1, 1)),
        ((4, 1, 4), 5, (4, 1), (2, 2, 1)),
        ((2, 2, 2, 2), 2, (2,), (1, 1)),
        ((2, 2, 2, 2), 8, (2, 2, 2, 2), (2, 2, 2, 2)),
    ],
)
def test_workers_of_an_empty_cluster(
    cpus: tuple[int, ...], workers: int, packed: tuple[int, ...], spread: tuple[int, ...]
) -> None:
    empty = nodes_of(*((one, 0) for one in cpus))
    for strategy, expected in (("pack", packed), ("spread", spread)):
        nodes = lay_out(place(workers, strategy), empty)
        assert nodes is not None
        assert workers_per_node(nodes) == expected
        assert num_nodes(place(workers, strategy), empty) == len(expected)


@pytest.mark.parametrize(
    ("strategy", "free", "nodes"),
    [
        ("pack", ((1, 0), (1, 0)), None),  # not torn apart: a node holds it when it is empty
        ("pack", ((2, 0), (1, 0)), (0, 0)),
        ("spread", ((2, 0), (0, 0)), None),  # nor pressed together
        ("spread", ((1, 0), (1, 0)), (0, 1)),
    ],
)
def test_every_run_of_a_placement_has_as_many_nodes(
    strategy: str, free: tuple[tuple[int, int], ...], nodes: tuple[int, ...] | None
) -> None:
    empty = nodes_of((2, 0), (2, 0))
    assert lay_out(place(2, strategy), nodes_of(*free), empty) == nodes


def test_a_group_takes_the_gpu_node_rather_than_be_torn_apart() -> None:
    assert lay_out(place(2), nodes_of((1, 0), (1, 0), (2, 2))) == (2, 2)


def test_the_type_of_the_gpus_is_chosen() -> None:
    a100, h100 = (
        replace(node, accelerator=model)
        for node, model in zip(nodes_of((4, 2), (4, 2)), ("A100", "H100"), strict=True)
    )
    wanted = Placement("torch", 2, gpus_per_worker=1, accelerator_type="H100")
    assert lay_out(wanted, (a100, h100)) == (1, 1)
    assert lay_out(wanted, (a100,)) is None
    with pytest.raises(UserError, match=r"^accelerator_type: the cluster has no H100, it has A100"):
        Capacity((a100,), 0.0).refuse_infeasible(wanted)


def test_parts_of_a_gpu_are_for_runs_of_one_worker() -> None:
    admission = Admission(nodes_of((16, 1)))
    for number in range(11):
        admission.submit(str(number), place(1, gpus_per_worker=0.1))
    assert len(admission.admit()) == 10, "ten tenths are one GPU"
    two = place(2, gpus_per_worker=0.5)
    assert not admission.fits(two)
    for capacity in (Capacity(nodes_of((4, 1)), 0.0), Capacity((), 0.0, knows_gpus=False)):
        with pytest.raises(UserError, match="NCCL refuses two on one"):
            capacity.refuse_infeasible(two)


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


def test_parts_that_do_not_add_up_are_not_called_free() -> None:
    admission = Admission(nodes_of((8, 2)))
    for number in range(2):
        admission.submit(str(number), place(1, gpus_per_worker=0.6))
    admission.submit("2", place(1, gpus_per_worker=1))
    assert len(admission.admit()) == 2
    assert missing(admission) == {"2": "1 GPU: 0 free on host a"}


def test_what_fits_no_layout_is_refused_with_what_each_host_has() -> None:
    capacity = Capacity(nodes_of((1, 0), (2, 0)), 0.0)
    with pytest.raises(UserError, match=r"room for 0 .*: a 1 and 0, b 2 and 0\); ask for fewer"):
        capacity.refuse_infeasible(place(1, cpus_per_worker=3))
    capacity.refuse_infeasible(place(3))


class TestMissing:
    """What a group waits for, from the admission's state alone."""

    def test_gpus_that_are_free_on_two_hosts(self) -> None:
        admission = Admission(nodes_of((8, 2), (8, 2)), taken=[(0, 1), (0, 1)])
        admission.submit("0007", place(2, gpus_per_worker=1))
        assert admission.admit() == []
        (sentence,) = missing(admission).values()
        assert sentence == (
            "2 GPUs: 1 free on host a, 1 on host b; placement_strategy pack wants them on 1 host"
        )

    def test_cpus_that_others_hold_and_who_waits_behind(self) -> None:
        admission = Admission(nodes_of((2, 0), (1, 0)), taken=[(2, 0), (0, 0)])
        admission.submit("0", place(3))
        admission.submit("1", place(1))
        assert admission.admit() == []
        head = "3 CPUs: 0 free on host a, 1 on host b"
        assert missing(admission) == {
            "0": head,
            "1": f"its turn, after trial 0, which waits for {head}",
        }
        admission.taken = []
        assert [grant.nodes for grant in admission.admit()] == [(0, 0, 1)]
        assert set(missing(admission)) == {"1"}

    def test_cpus_are_named_where_gpus_are_not_what_is_short(self) -> None:
        admission = Admission(nodes_of((2, 2), (4, 0)), taken=[(1, 0), (0, 0)])
        admission.submit("0", place(1, cpus_per_worker=2, gpus_per_worker=1))
        assert admission.admit() == []
        assert missing(admission) == {"0": "2 CPUs: 1 free on host a"}

    def test_memory_for_processes(self) -> None:
        admission = Admission(nodes_of((8, 0)), max_workers=2)
        admission.submit("0", place(2))
        admission.admit()
        admission.submit("1", place(1))
        assert admission.admit() == []
        assert "memory for 1 more worker processes: 2 of at most 2" in missing(admission)["1"]

    def test_nobody_waits_for_nothing(self) -> None:
        assert missing(Admission(nodes_of((1, 0)))) == {}
