"""Why a group does not get its workers now, in one sentence; pure."""

from collections.abc import Sequence

from raybench.cluster.layout import Node, num_nodes
from raybench.core.placement import Placement


def what_is_missing(placement: Placement, free: Sequence[Node], empty: Sequence[Node]) -> str:
    """Return what a group waits for: `2 GPUs: 1 free on host a, 1 on host b`.

    Said of GPUs where it needs them and they are what is short, of CPUs otherwise. What follows
    the semicolon is why workers that are free in sum do not do.
    """
    pairs = zip(free, empty, strict=True)
    left = [now for now, ever in pairs if ever.room(placement)]
    is_gpu = placement.gpus > 0 and sum(_num_by_gpus(placement, one) for one in left) <= sum(
        placement.num_fitting(one.cpus, placement.gpus) for one in left
    )
    need, unit = (placement.gpus, "GPU") if is_gpu else (placement.cpus, "CPU")
    if placement.accelerator_type and is_gpu:
        unit = f"{placement.accelerator_type} {unit}"
    amounts = [(one.gpus if is_gpu else one.cpus, one.name or one.id[:8]) for one in left]
    parts = [
        f"{max(amount, 0):g}{' free' if number == 0 else ''} on host {name}"
        for number, (amount, name) in enumerate(amounts)
    ]
    sentence = f"{need:g} {unit}{'' if need == 1 else 's'}: {', '.join(parts)}"
    if sum(one.room(placement) for one in left) < placement.num_workers:
        return sentence
    count = num_nodes(placement, empty)
    hosts = f"{count} host{'' if count == 1 else 's'}"
    return f"{sentence}; placement_strategy {placement.strategy} wants them on {hosts}"


def _num_by_gpus(placement: Placement, node: Node) -> int:
    return placement.num_fitting(placement.cpus, node.gpus)
