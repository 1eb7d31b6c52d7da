"""What the recorder says while a search runs."""

import io
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from raybench.core.objective import Objective
from raybench.results.progress import Progress
from raybench.results.store import Store
from raybench.search.ray_tune.callback import Recorder
from raybench.search.ray_tune.opaque import wrap


@pytest.mark.parametrize(
    ("is_factorised", "has_statistics", "times"),
    [(True, [True, True], 1), (True, [False, True], 1), (True, [False], 0), (False, [True], 0)],
)
def test_batch_normalisation_is_said_once_where_curves_are_carried_over(
    tmp_path: Any, is_factorised: bool, has_statistics: list[bool], times: int
) -> None:
    said = io.StringIO()
    nothing: Any = None
    recorder = Recorder(
        Store(tmp_path),
        Objective(target=0.9),
        hub=nothing,
        control=nothing,
        screen=Progress(Console(file=said), num_trials=2),
        scheduler=nothing,
        searcher=nothing,
        allowance=nothing,
        is_factorised=is_factorised,
        keep_groups=True,
    )
    trial: Any = SimpleNamespace(config={"trial": "0000"})
    for number, has in enumerate(has_statistics):
        recorder.on_trial_result(number, [], trial, wrap({"batch_statistics": has}))
    assert said.getvalue().count("The model has batch normalisation") == times
