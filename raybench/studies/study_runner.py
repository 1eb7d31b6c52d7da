"""The runs of a scaling study: one at a time, in a random order, interleaved by repeat."""

import random
from collections.abc import Iterator, Sequence

from raybench.cluster.session import Session
from raybench.core.placement import Placement
from raybench.core.scaling_study import ScalingStudy, StudyCell, study_cells
from raybench.results.live.progress import Progress
from raybench.results.records import read_records
from raybench.results.store import Store
from raybench.search.deadline import Deadline
from raybench.search.pipeline.single_run import SingleRun
from raybench.search.saved_runs import SavedRuns


def run_study(
    study: ScalingStudy,
    *,
    session: Session,
    store: Store,
    progress: Progress,
    deadline: Deadline,
) -> None:
    """Run what is left of a study in the store's folder, until it is done or `deadline` ends it.

    Nothing else runs meanwhile, in this session at least. A run that was cut off in an earlier
    session goes on from its checkpoint, one that the machine lost runs again.
    """
    runs = read_records(store.folder).runs
    done = {name for name, run in runs.items() if run.is_answer}
    left = [
        (cell, number)
        for cell, number in run_order(study_cells(study), study.repeats, seed=study.seed)
        if cell.repeat(number)[0] not in done
    ]
    progress.begin("scaling", len(left))
    with SavedRuns(session.pool, store, say=progress.say, on_fault=deadline.ends_with) as saved:
        single_run = SingleRun(session, store, deadline, progress, saved)
        for cell, number in left:
            if deadline.over:
                break
            name, spec = cell.repeat(number)
            single_run.train(spec, name, "scaling", source=cell.name)
    deadline.raise_fault()


def run_order(
    cells: Sequence[StudyCell], repeats: int, *, seed: int
) -> Iterator[tuple[StudyCell, int]]:
    """Yield every repeat of every cell: all first ones, all second ones, ...

    What drifts on the machine (heat, neighbours) meets all cells alike. Within a repeat, worker
    groups come in a random order, and the cells of each group in a random order behind one
    another, so that a group is started no more than once a repeat. The order of a repeat does not
    depend on how many there are.
    """
    groups: dict[Placement, list[StudyCell]] = {}
    for cell in cells:
        groups.setdefault(cell.spec.placement.group, []).append(cell)
    for number in range(repeats):
        chance = random.Random(f"{seed}/{number}")
        for group in chance.sample(list(groups), len(groups)):
            for cell in chance.sample(groups[group], len(groups[group])):
                yield cell, number
