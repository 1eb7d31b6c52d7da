"""From the options of `raybench tune` to the study that fits this machine."""

from pathlib import Path
from typing import Any

import pytest

from raybench.api import call_options
from raybench.cluster.layout import Capacity, Node
from raybench.runs import preflight
from raybench.search.resolve import ResolvedStudy, resolve_study
from raybench.spec.errors import ErrorCode
from raybench.spec.space import possible_values
from raybench.training.machine import GpusSeen
from tests.factories import TWO_GPUS
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    visible = GpusSeen(names=("H100", "H100"))
    monkeypatch.setattr(preflight, "gpus_of_framework", lambda framework: visible)


def resolved(space: dict[str, Any], dataset: Any = "digits", **options: Any) -> ResolvedStudy:
    content = {"objective": {"target": 0.9}, "dataset": dataset, "space": space}
    return resolve_study(call_options("tune", {"space": content, **options}), TWO_GPUS)


def test_worker_counts_in_a_file_are_fitted_to_the_gpus_that_the_study_will_use():
    fitted = resolved({"num_workers": [1, 2, 4]})
    assert fitted.study.fixed == {"gpus_per_worker": 1}
    assert possible_values(fitted.space["num_workers"]) == fitted.study.space["num_workers"]
    assert possible_values(fitted.space["num_workers"]) == [1, 2]
    assert [value in fitted.sentences[1] for value in ("num_workers 4", "2 GPUs")] == [True, True]


def test_worker_counts_of_the_command_line_are_kept():
    fitted = resolved({"optimizer": ["adam"]}, workers=[1, 4])
    assert "gpus_per_worker" not in fitted.study.fixed, "four workers have no GPU each"
    assert possible_values(fitted.space["num_workers"]) == [1, 4]


def test_keys_that_conflict_with_the_gpus_of_this_machine_are_refused():
    with refused(ErrorCode.CONFLICT, "reduce-overhead", "accumulate"):
        resolved({"compile": ["none", "reduce-overhead"], "accumulate": [1, 2]})
    on_cores = {"gpus_per_worker": [0], "compile": ["none", "reduce-overhead"], "accumulate": [2]}
    assert resolved(on_cores).study.fixed == {}


def test_an_empty_section_of_fixed_keys_is_accepted_for_a_training_loop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fit.py").write_text("def train(run):\n    import keras\n")
    content = {"workload": "fit.py:train", "objective": {"target": 0.9}, "fixed": None}
    options = call_options("tune", {"space": content | {"space": {"num_workers": [1, 2]}}})
    fitted = resolve_study(options, Capacity((Node(1, 0),), 0.0))
    assert fitted.study.fixed == {"framework": "tensorflow"}
    assert possible_values(fitted.space["num_workers"]) == [1]


def test_frameworks_without_a_model_of_the_workload_are_left_out_of_a_shipped_space(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch_only.py").write_text(
        "import raybench\n\nclass Net(raybench.Workload):\n"
        "    name, input_shape, num_classes = 'net', (28, 28, 1), 10\n"
        "    def build_torch(self):\n        raise AssertionError('not built before the search')\n"
    )
    shipped = call_options("tune", {"space": "digits", "workload": "torch_only:Net"})
    fitted = resolve_study(shipped, TWO_GPUS)
    assert possible_values(fitted.space["framework"]) == ["torch"]
    assert "tensorflow" in fitted.sentences[0]
    with refused(ErrorCode.UNSUPPORTED, "build_keras"):
        resolved(
            {"framework": ["torch", "tensorflow"]},
            workload="torch_only:Net",
            dataset={"name": "digits", "image_size": 28},
        )
