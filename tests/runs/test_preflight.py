"""Checks of a run before it starts: metric, addresses, files, GPUs."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.cluster.layout import Capacity, Node
from raybench.runs.preflight import check_address, check_task, files_of, spec_on_gpus
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from tests.factories import TWO_GPUS
from tests.refusals import refused


def checked(**objective: Any) -> Any:
    spec = RunSpec.model_validate({"dataset": "digits", "objective": objective})
    return check_task(spec, ["torch"])[0]


def test_the_metric_and_its_chance_level_are_named_before_anything_runs():
    assert checked(target=0.9).model_dump(include={"metric", "direction", "baseline_value"}) == {
        "metric": "accuracy",
        "direction": "max",
        "baseline_value": 0.1,
    }
    loss = checked(metric="loss", target=0.5)
    assert (loss.direction, loss.baseline_value) == ("min", pytest.approx(2.31, abs=0.01))
    with refused(ErrorCode.INVALID_VALUE, "2.3", "3"):
        checked(metric="loss", target=3.0)
    with refused(ErrorCode.CONFLICT, "rmse", "classification"):
        checked(metric="rmse", target=3.0)


def test_the_default_target_applies_only_to_accuracy():
    spec = RunSpec.model_validate({"dataset": "digits"})
    assert check_task(spec, ["torch"], is_target_ours=True)[0].target == 0.95
    loss = spec.model_copy(update={"objective": Objective(metric="loss", target=0.95)})
    objective = check_task(loss, ["torch"], is_target_ours=True)[0]
    assert (objective.kind, objective.target) == ("best_at_budget", None)


def test_metrics_of_a_workload_have_no_baseline(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_metrics_a.py").write_text(
        """
from raybench import Workload
from raybench.spec.metric import Metric

class Own(Workload):
    name, input_shape, num_classes = "own", (8, 8, 1), 10
    metric = Metric(name="dice", direction="max")

    def build_torch(self): ...
    def torch_loss(self, outputs, labels): ...

class Taken(Own):
    metric = Metric(name="samples", direction="max")
"""
    )
    spec = RunSpec.model_validate({"workload": "own_metrics_a:Own", "dataset": "digits"})
    for objective, expected in (
        ({"kind": "best_at_budget"}, ("dice", None)),
        ({"kind": "best_at_budget", "metric": "loss"}, ("loss", None)),
        ({"metric": "top5", "target": 0.9}, ("top5_accuracy", 0.5)),
    ):
        own = spec.model_copy(update={"objective": Objective(**objective)})
        checked_objective, _ = check_task(own, ["torch"])
        assert (checked_objective.metric, checked_objective.baseline_value) == expected
    taken = spec.model_copy(update={"workload": "own_metrics_a:Taken"})
    with refused(ErrorCode.CONFLICT, "objective.metric", "samples"):
        check_task(taken, ["torch"])


def test_files_that_workers_must_read_are_listed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("loop.py", "mine.py", "rows.csv"):
        (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(__file__=str(tmp_path / "mine.py")))
    table = {"name": "csv", "path": "rows.csv", "label": "y"}
    for workload, data, names in (
        ("loop.py:train", "digits", ["loop.py"]),
        ("mine:Mine", table, ["rows.csv", "mine.py"]),
        ("mnist_small", "digits", []),
        ("torchvision:resnet18", "digits", []),
    ):
        spec = RunSpec.model_validate({"workload": workload, "dataset": data})
        assert files_of(spec) == [tmp_path / name for name in names]


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "ray://host:10001", "host:port", ":6379"])
def test_invalid_addresses_are_refused(address):
    with refused(ErrorCode.INVALID_VALUE, "--address", address):
        check_address(address)
    for fine in (None, "auto", "local", "host:6379"):
        check_address(fine)


@pytest.mark.parametrize(
    ("content", "gpus", "says"),
    [
        ({}, 1, "--set gpus_per_worker=0"),
        ({"num_workers": 3}, 0, "3 workers"),
        ({"gpus_per_worker": 0}, 0, None),
        ({"gpus_per_worker": 0.5}, 0.5, None),
        (RunSpec().document(), 0, None),
    ],
)
def test_one_run_trains_on_available_gpus(content, gpus, says, torch_alone):
    spec = RunSpec.model_validate(content)
    adapted, words = spec_on_gpus(spec, TWO_GPUS)
    assert adapted == spec.model_copy(update={"gpus_per_worker": gpus})
    assert (says is None) == (not words)
    assert says is None or says in words[0]
    assert spec_on_gpus(spec, Capacity((Node(16, 0),), 0.0)) == (spec, [])
