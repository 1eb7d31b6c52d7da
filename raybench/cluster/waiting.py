"""What waits for which machines, in one sentence each; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from raybench.cluster.admission import Admission
from raybench.cluster.layout import Node, num_nodes
from raybench.core.placement import Placement


@dataclass(frozen=True)
class Waiting:
    """A trial that waits for its group."""

    what: str
    """What it waits for, as `what_is_missing` says it, or whose turn is before."""
    seconds: float
    """Since it has asked."""
    short_s: float
    """Seconds of all its waiting in which the machines were missing, whatever runs of ours held."""


def missing(admission: Admission) -> dict[str, str]:
    """Return for every waiting trial what it waits for, in one sentence."""
    first = next((one for one in admission.waiting if admission.fits(one[1])), None)
    head, reason = (None, "") if first is None else (first[0], _reason(admission, first[1]))
    said: dict[str, str] = {}
    for trial, placement in admission.waiting:
        if not admission.fits(placement):
            said[trial] = what_the_cluster_lacks(placement, admission.nodes)
        else:
            behind = f"its turn, after trial {head}, which waits for {reason}"
            said[trial] = reason if trial == head else behind
    return said


def _reason(admission: Admission, placement: Placement) -> str:
    idle = [n for n, group in admission.groups.items() if group.trial is None]
    free = admission.free(without=idle)
    there = [n for n, node in enumerate(admission.nodes) if not node.is_gone]
    if admission.lay_out(placement, without=idle) is None:
        nodes = admission.nodes
        return what_is_missing(placement, [free[n] for n in there], [nodes[n] for n in there])
    alive = sum(group.placement.num_workers for group in admission.at_work())
    return (
        f"memory for {placement.num_workers} more worker processes: {alive} of at most "
        f"{admission.max_workers} are at work"
    )


def what_is_missing(placement: Placement, free: Sequence[Node], empty: Sequence[Node]) -> str:
    """Return what a group waits for: `2 GPUs: 1 free on host a, 1 on host b`.

    Said of GPUs where it needs them and they are what is short, of CPUs otherwise. What follows
    the semicolon is why workers that are free in sum do not do.
    """
    pairs = zip(free, empty, strict=True)
    left = [now for now, ever in pairs if ever.room(placement)]
    sentence = _amounts(placement, left, " free")
    if sum(one.room(placement) for one in left) < placement.num_workers:
        return sentence
    count = num_nodes(placement, empty)
    hosts = f"{count} host{'' if count == 1 else 's'}"
    return f"{sentence}; placement_strategy {placement.strategy} wants them on {hosts}"


def what_the_cluster_lacks(placement: Placement, nodes: Sequence[Node]) -> str:
    """Return what hosts would have to bring for a group that fits those of now in no way."""
    there = [node for node in nodes if not node.is_gone]
    if not there:
        return f"{_need(placement, is_gpu=placement.gpus > 0)}: the cluster has no host for workers"
    return f"{_amounts(placement, there, '')} in all; hosts must join"


def _amounts(placement: Placement, left: Sequence[Node], word: str) -> str:
    is_gpu = placement.gpus > 0 and sum(_num_by_gpus(placement, one) for one in left) <= sum(
        placement.num_fitting(one.cpus, placement.gpus) for one in left
    )
    each = placement.gpus_per_worker
    amounts = [
        (one.usable_gpus(each) if is_gpu else one.cpus, one.name or one.id[:8]) for one in left
    ]
    parts = [
        f"{max(amount, 0):g}{word if number == 0 else ''} on host {name}"
        for number, (amount, name) in enumerate(amounts)
    ]
    return f"{_need(placement, is_gpu=is_gpu)}: {', '.join(parts)}"


def _need(placement: Placement, *, is_gpu: bool) -> str:
    need, unit = (placement.gpus, "GPU") if is_gpu else (placement.cpus, "CPU")
    if placement.accelerator_type and is_gpu:
        unit = f"{placement.accelerator_type} {unit}"
    return f"{need:g} {unit}{'' if need == 1 else 's'}"


def _num_by_gpus(placement: Placement, node: Node) -> int:
    if placement.accelerator_type not in (None, node.accelerator):
        return 0
    return placement.num_fitting(placement.cpus, node.usable_gpus(placement.gpus_per_worker))
