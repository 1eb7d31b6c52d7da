"""Which runs may be compared: those whose workers were laid out alike.

Runs of one size are ranked against each other only where they were on as few hosts as any of
them; a `spread` run only where the study asked for it; and each model of GPU by itself. A strategy
is no layout but, as a framework, a way to use one: on as many devices and hosts, which is faster is
what a study asks.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from raybench.core.record import RunRecord

STRATEGY = "placement_strategy"
NOT_EXCHANGED = "its workers exchanged no gradients: a measurement, not a training"
NOT_ASKED = "spread, which the study did not ask for"


class Layout(NamedTuple):
    """What is compared of how a run's workers were laid out."""

    num_workers: int
    cpus_per_worker: int
    gpus_per_worker: float
    accelerators: tuple[str, ...]
    is_spread: bool
    num_nodes: int
    """0 where hosts were not counted."""
    exchanges: bool = True
    """Whether its workers exchanged gradients."""

    @property
    def size(self) -> "Layout":
        """What runs have in common that may be on as many hosts."""
        return self._replace(num_nodes=0)


def layout_of(record: RunRecord) -> Layout:
    """Return how a run was laid out."""
    spec = record.spec
    return Layout(
        spec.num_workers,
        spec.cpus_per_worker,
        spec.gpus_per_worker,
        tuple(record.accelerators),
        spec.placement_strategy == "spread",
        record.num_nodes,
        spec.exchange_gradients,
    )


def accelerators_of(record: RunRecord) -> str | None:
    """Return the models of a run's GPUs as one text; None without GPUs."""
    return ", ".join(record.accelerators) or None


class Usual:
    """The number of hosts that runs of a size are compared on.

    As few as any of them had, of spread ones as many. Where hosts were not counted, a run is
    taken for a usual one.
    """

    def __init__(self, *, may_spread: bool) -> None:
        self._may_spread = may_spread
        self._num_nodes: dict[Layout, int] = {}

    def add(self, layout: Layout) -> bool:
        """Take a run's layout; return whether what is usual for its size has changed."""
        if not layout.num_nodes or not layout.exchanges:
            return False
        before = self._num_nodes.get(layout.size)
        if before is None:
            best = layout.num_nodes
        else:
            best = (min, max)[layout.is_spread](before, layout.num_nodes)
        self._num_nodes[layout.size] = best
        return best != before

    def objection(self, layout: Layout) -> str | None:
        """Return why a run is not ranked, in words; None where it is."""
        if not layout.exchanges:
            return NOT_EXCHANGED
        if layout.is_spread and not self._may_spread:
            return NOT_ASKED
        usual = self._num_nodes.get(layout.size, layout.num_nodes)
        if layout.num_nodes in (0, usual):
            return None
        return f"on {_hosts(layout.num_nodes)}, others of its size on {usual}"


def usual_of(
    runs: Iterable[RunRecord], space: Mapping[str, Any], fixed: Mapping[str, Any]
) -> Usual:
    """Return what is usual in a study; `space` and `fixed` are those of its file.

    Of a run that failed nothing is learnt: it may have had no workers.
    """
    usual = Usual(may_spread=STRATEGY in space or STRATEGY in fixed)
    for record in runs:
        if record.failure is None:
            usual.add(layout_of(record))
    return usual


def _hosts(number: int) -> str:
    return f"{number} host{'s' if number != 1 else ''}"
