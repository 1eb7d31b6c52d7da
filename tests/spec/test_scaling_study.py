"""Scaling studies: the cells of their grid, settings, and refused files."""

from typing import Any

import pytest

from raybench.spec.documents import parse_settings, parse_yaml, to_yaml, validate
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import (
    ScalingStudy,
    build_scaling_study,
    set_in_scaling,
    study_cells,
)
from tests.refusals import refused

GRID = {"base": {}, "num_workers": [1, 2, 4], "batch_sizes": [64, 128]}


def study_of(content, *settings):
    content = set_in_scaling(content, parse_settings(settings))
    return build_scaling_study(content, "my.yaml", name="my")


def cells_of(content, *settings):
    return study_cells(study_of(content, *settings), "my.yaml")


def test_weak_scaling_fixes_the_batch_per_worker_and_strong_the_global_batch():
    cells = {(c.spec.num_workers, c.spec.batch_size_per_worker): c.scalings for c in cells_of(GRID)}
    weak = {cell for cell, scalings in cells.items() if "weak" in scalings}
    strong = {cell for cell, scalings in cells.items() if "strong" in scalings}
    assert weak == {(1, 64), (1, 128), (2, 64), (2, 128), (4, 64), (4, 128)}
    assert strong == {(1, 64), (1, 128), (2, 32), (2, 64), (4, 16), (4, 32)}
    assert len(cells_of(GRID)) == len(weak | strong), "a run spec of both scalings runs once"


def test_axes_are_combined_and_may_be_nested_keys():
    axes = {"framework": ["torch", "tensorflow"], "dataset.repeat": [1, 4]}
    cells = cells_of(GRID | {"axes": axes, "scaling": "weak"})
    assert len(cells) == 6 * 4
    assert {(c.spec.framework, c.spec.dataset.repeat) for c in cells} == {
        (f, r) for f in axes["framework"] for r in axes["dataset.repeat"]
    }


def test_a_written_study_is_read_back_with_the_same_cells():
    study = study_of(GRID | {"axes": {"optimizer": ["adam", "lamb"]}})
    read_back = validate(ScalingStudy, parse_yaml(to_yaml(study.document()), "y"), "y")
    assert read_back == study
    assert study_cells(read_back) == study_cells(study)


def test_an_empty_file_trains_three_epochs_without_a_target():
    study = study_of({})
    assert study.base.epochs == 3
    assert study.base.objective.kind == "best_at_budget"
    assert study.num_workers is None
    assert study.with_workers([1, 2]).num_workers == [1, 2]
    assert study_of(GRID).with_workers([8]).num_workers == [1, 2, 4]


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"batch_sizes": [100], "num_workers": [1, 3]}, "INVALID_VALUE", ["'batch_sizes'", 100, 3]),
        ({"base": {"num_workers": 2}}, "CONFLICT", ["base.num_workers", "[2]"]),
        ({"base": {"epoch": 2}}, "UNKNOWN_KEY", ["'epoch'", "'epochs'"]),
        ({"base": {"mup_base": {}}}, "REMOVED", ["'mup_base'", "raybench forecast"]),
        ({"axes": {"framwork": ["torch"]}}, "UNKNOWN_KEY", ["'framwork'", "'framework'"]),
        ({"axes": {"num_workers": [1]}}, "INVALID_VALUE", ["num_workers: [...]"]),
        ({"axes": {"optimizer": []}}, "INVALID_VALUE", ["'axes.optimizer'"]),
        ({"scaling": "both"}, "INVALID_VALUE", ["'scaling.0'", "'weak'", "'strong'"]),
        ({"cells": [{"changes": {}}]}, "INVALID_VALUE", ["num_workers", "cells"]),
        ({"batch_size_per_worker": 64}, "UNKNOWN_KEY", ["'base.batch_size_per_worker'"]),
    ],
)
def test_invalid_studies_are_refused(changes, code, names):
    with refused(ErrorCode[code], "my.yaml", *names):
        cells_of(GRID | changes)


def test_set_changes_the_base_and_replaces_an_axis():
    axes = {"framework": ["torch", "tensorflow"], "optimizer": ["adam", "lamb"]}
    settings = ("epochs=5", "framework=torch", "dataset.repeat=2", "num_workers=2", "seed=3")
    study = study_of({"axes": axes}, *settings)
    assert study.axes == {"optimizer": ["adam", "lamb"]}
    assert (study.base.epochs, study.base.framework, study.base.dataset.repeat) == (5, "torch", 2)
    assert (study.num_workers, study.seed, study.base.seed) == ([2], 3, 0)


def specs_with(content: dict[str, Any], *settings: str) -> list[RunSpec]:
    return [cell.spec for cell in cells_of(content, *settings)]


WRITTEN = [
    {"changes": {"framework": name, "dataset": {"name": "digits", "repeat": 2}, "accumulate": 2}}
    for name in ("torch", "tensorflow")
]


@pytest.mark.parametrize("prefix", ["", "base."])
def test_set_changes_explicit_cells(prefix):
    (spec,) = specs_with({"cells": WRITTEN}, f"{prefix}framework=torch")
    assert spec.framework == "torch"
    specs = specs_with({"cells": WRITTEN}, f"{prefix}dataset={{name: digits, repeat: 5}}")
    assert [(s.framework, s.dataset.repeat) for s in specs] == [("torch", 5), ("tensorflow", 5)]
    assert {s.accumulate for s in specs_with({"cells": WRITTEN}, f"{prefix}accumulate=3")} == {3}


def test_set_replaces_axes_below_a_key():
    content = GRID | {"scaling": "weak", "axes": {"dataset.name": ["mnist", "digits"]}}
    assert {s.dataset.name for s in specs_with(content, "dataset=digits")} == {"digits"}


OF_CELLS = {"cells": [{"changes": {"batch_size_per_worker": 8}}]}


@pytest.mark.parametrize(
    ("content", "setting", "code", "names"),
    [
        ({}, "epohs=3", "UNKNOWN_KEY", ["--set epohs", "'epochs'"]),
        ({"axes": 5}, "axes.framework=[torch]", "UNKNOWN_KEY", ["'axes'"]),
        (GRID, "base.batch_size_per_worker=16", "CONFLICT", ["--set 'batch_sizes=[16]'"]),
        (GRID, "base={num_workers: 4}", "CONFLICT", ["--set 'num_workers=[4]'"]),
        ({}, "record_steps=false", "CONFLICT", ["--set record_steps"]),
        ({"cells": WRITTEN}, "dataset.repeat=5", "CONFLICT", ["dataset.repeat"]),
        (OF_CELLS, "batch_size_per_worker=16", "CONFLICT", ["batch_size_per_worker"]),
    ],
)
def test_invalid_settings_are_refused(content, setting, code, names):
    with refused(ErrorCode[code], *names):
        study_of(content, setting)
