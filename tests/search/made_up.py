"""Studies, searches and runs that tests report to a search in place of training."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import optuna

from raybench.search.factorisation import Factors, factorise
from raybench.search.search import Search
from raybench.spec.run import Placement, RunSpec
from raybench.spec.space import Space
from raybench.spec.study import StudySpec, build_study
from raybench.stats.record import RunRecord
from tests.factories import evaluation as evaluation
from tests.factories import outcome as outcome
from tests.factories import record as record

STUDY: dict[str, Any] = {
    "dataset": {"name": "digits", "image_size": 28},
    "objective": {"target": 0.95, "max_train_seconds": 10},
    "search": {"trials": 60, "seed": 0},
    "space": {
        "num_workers": [1, 2],
        "batch_size_per_worker": {"low": 16, "high": 512, "log2": True},
        "optimizer": ["adam", "lars"],
        "learning_rate": [
            {"when": {"optimizer": "adam"}, "low": 1e-4, "high": 1e-1, "log": True},
            {"when": {"optimizer": "lars"}, "low": 1e-2, "high": 10.0, "log": True},
        ],
    },
}
"""A study of 60 trials; tests change parts of it."""

RATES = STUDY | {
    "search": {"trials": 18, "priors": False},
    "space": {key: STUDY["space"][key] for key in ("optimizer", "learning_rate")},
}
"""A study that searches only optimizers and learning rates."""

Judge = Callable[[str, RunSpec], RunRecord]
"""Returns the record of a trial with a name and a spec."""


def parts_of(
    content: dict[str, Any], *, apart: bool = False
) -> tuple[StudySpec, Space, Factors | None]:
    """Return a study, its space, and with `apart` the factorized space."""
    study, space = build_study(content, "test")
    factors = factorise(study, space, equal_frameworks=True) if apart else None
    assert not isinstance(factors, str), factors
    return study, space, factors


def make_search(
    folder: Path,
    content: dict[str, Any] = STUDY,
    *,
    apart: bool = False,
    runs: Iterable[RunRecord] = (),
    **options: Any,
) -> Search:
    """Open the search of a study in a folder; `runs` are records of earlier sessions."""
    study, space, factors = parts_of(content, apart=apart)
    folder.mkdir(exist_ok=True)
    by_name = {record.trial: record for record in runs}
    return Search(study, space, folder, factors=factors, runs=by_name, **options)


def ask(search: Search) -> tuple[str, RunSpec]:
    """Return the next trial; there must be one."""
    proposal = search.suggest()
    assert proposal is not None
    return proposal


def run_all(search: Search, judge: Judge = record, most: int = 1000) -> list[RunRecord]:
    """Run up to `most` trials one after the other; return their records."""
    ended: list[RunRecord] = []
    while len(ended) < most and (proposal := search.suggest()) is not None:
        ended.append(judge(*proposal))
        search.on_end(ended[-1])
    return ended


def journal_of(search: Search) -> optuna.Study:
    """Return Optuna's study of a search."""
    return search._journal


def seconds_on(placement: Placement) -> float:
    """Return the seconds of 10,000 samples: 0.1 ms per sample of a worker, and 2 ms per step for
    each worker but the first."""
    workers, batch = placement.num_workers, placement.batch_size_per_worker
    return 10_000 / (workers * batch) * (1e-4 * batch + 2e-3 * (workers - 1))


def trained(name: str, spec: RunSpec) -> RunRecord:
    """Return the record of a run that reached the target after 10,000 samples."""
    seconds = seconds_on(spec.placement)
    return record(name, spec, seconds, samples=10_000, score=math.log(seconds))
