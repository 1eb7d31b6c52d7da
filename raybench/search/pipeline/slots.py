"""How many runs of a race there is room for at the same time."""

from dataclasses import replace

from raybench.cluster.capacity import Capacity
from raybench.cluster.session import Session
from raybench.core.placement import Placement
from raybench.core.space import Space
from raybench.core.spec import RunSpec
from raybench.core.study import StudySpec
from raybench.search.pipeline.preflight import following


def slots_now(study: StudySpec, space: Space, session: Session, concurrency: int) -> int:
    """Return how many runs go on at once: as many trials as the search would have at this moment.

    `concurrency` is what it began with.
    """
    follow = following(study, space, session.capacity)
    if follow is None or session.is_local:
        return concurrency
    return max(1, follow(session.nodes()))


def num_at_most(spec: RunSpec, capacity: Capacity) -> int:
    """Return how many workers of a spec the empty cluster holds in all its runs together."""
    return _room(spec.placement.group, capacity)


def _room(group: Placement, capacity: Capacity) -> int:
    return capacity.num_fitting(replace(group, num_workers=max(capacity.cpus, group.num_workers)))


def num_at_once(spec: RunSpec, capacity: Capacity, slots: int) -> int:
    """Return how many runs of a spec the empty cluster holds at once, at most `slots`."""
    return num_groups(spec.placement.group, capacity, slots)


def num_groups(group: Placement, capacity: Capacity, slots: int) -> int:
    """Return how many such groups the empty cluster holds at once, at most `slots`; 1 at least."""
    return max(1, min(slots, _room(group, capacity) // group.num_workers))
