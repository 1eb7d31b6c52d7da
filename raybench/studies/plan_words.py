"""What a scaling study would do, printed by `--dry-run`; nothing starts."""

from collections.abc import Mapping

from rich.console import Console

from raybench.core.scaling_study import ScalingStudy, study_cells
from raybench.data.dataset import Dataset
from raybench.results.console import say
from raybench.results.label import describe, label_keys
from raybench.results.scaling.kinds import series_of

MOST_CELLS = 40
"""That are listed one by one."""


def print_study(
    console: Console, study: ScalingStudy, datasets: Mapping[str, Dataset], place: str
) -> None:
    """Print the cells of a study, how often they run, the data, where the results go."""
    if study.num_workers is None and study.cells is None:
        say(console, "workers: 1, 2, 4, ... as many as the cluster at --address has room for")
        study = study.with_workers([1])
    cells = study_cells(study)
    keys = label_keys({key.partition(".")[0]: None for key in study.axes})
    series = series_of([cell.spec for cell in cells])
    for cell, one in list(zip(cells, series, strict=True))[:MOST_CELLS]:
        scalings = " and ".join(cell.scalings)
        tail = f"  ({one})" if study.cells else ""
        say(
            console,
            f"{cell.name}  {describe(cell.spec, keys)}  global batch "
            f"{cell.spec.global_batch_size}  {scalings}{tail}",
        )
    if len(cells) > MOST_CELLS:
        say(console, f"and {len(cells) - MOST_CELLS} more")
    for dataset in datasets.values():
        say(
            console,
            f"dataset {dataset.name}: {dataset.num_train_samples:,} training, "
            f"{len(dataset.validation):,} validation samples",
        )
    runs = len(cells) * study.repeats
    samples = study.repeats * sum(
        cell.spec.epochs * next(iter(datasets.values())).num_train_samples for cell in cells
    )
    length = f", about {samples:,.0f} samples in all" if len(datasets) == 1 else ""
    groups = len({cell.spec.placement.group for cell in cells})
    say(
        console,
        f"{len(cells)} cells, {study.repeats} repeats: {runs} runs, one at a time, in a random "
        f"order ({groups} kinds of worker group){length}",
    )
    say(console, f"results: {place}")
