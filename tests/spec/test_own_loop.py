"""User training loops in files and commands: settings derived from them, and refusals before
anything starts."""

import sys
from typing import Any

import pytest

from raybench.models.base import OwnLoop
from raybench.models.find import find_workload, load_workload_dataset
from raybench.runs.options import TrainOptions
from raybench.runs.preflight import check_task
from raybench.search.factorisation import study_factors
from raybench.search.preflight import check_study, groups
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.documents import validate
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.objective import BUDGET, Objective
from raybench.spec.own_loop import framework_of, words_of
from raybench.spec.run import RunSpec
from raybench.spec.study import build_study
from tests.refusals import refused

COMMAND = "$ python train.py --lr {learning_rate} --hidden {model.hidden_units} --seed {seed}"
CONTENT = {
    "workload": "train.py:train",
    "objective": {"target": 0.9},
    "space": {"learning_rate": [0.1, 0.2], "model": {"hidden_units": [8, 16]}},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    (tmp_path / "train.py").write_text(
        "def train(run):\n    run.learning_rate, run.model['hidden_units']\nnumber = 3\n"
    )
    return tmp_path


def study_of(**changes: Any) -> Any:
    return build_study(CONTENT | changes, "space.yaml")


def test_an_own_loop_has_its_own_data_and_evaluation_interval():
    study, space = study_of(dataset={"name": "digits"})
    assert study.dataset == DatasetSpec(name="workload")
    assert study.auto == []
    assert not study.needs_reference
    assert study_of(objective={"target": "auto"})[0].auto == ["target"]
    rebuilt = build_study(study.model_dump(mode="json", exclude={"auto", "is_set"}), "study")
    assert rebuilt[0] == study
    assert study.run_spec({"learning_rate": 0.1, "model.hidden_units": 8}).model == (
        {"hidden_units": 8}
    )
    assert "training loop" in str(study_factors(study, space))
    study, dataset, warnings = check_study(study, space)
    assert (warnings, len(dataset.train), study.objective.metric) == ([], 0, "accuracy")


def test_a_command_is_one_process_with_the_resources_of_all_workers():
    space = {"num_workers": [1, 2], "learning_rate": [0.1], "model": {"hidden_units": [8]}}
    study, space = study_of(workload=COMMAND + " -n {num_workers}", space=space)
    assert study.fixed == {"framework": "python"}
    small, large = groups(study, space)
    assert (small.num_workers, small.cpus, large.num_workers, large.cpus) == (1, 1, 1, 2)
    assert check_study(study, space)[2] == []


def test_searched_keys_missing_from_the_command_are_reported():
    study, space = study_of(workload="$ python train.py --lr {learning_rate} --seed {seed}")
    (warning,) = check_study(study, space)[2]
    assert "{model.hidden_units}" in warning
    with refused(ErrorCode.UNKNOWN_KEY, "{lr}", "did you mean 'learning_rate'?"):
        check_study(*study_of(workload="$ python train.py --lr {lr}"))
    space = {"batch_size_per_worker": [16, 32]}
    workload = "$ python train.py --batch {global_batch_size} --seed {seed}"
    assert check_study(*study_of(workload=workload, space=space))[2] == []


def test_a_command_without_its_seed_is_reported_if_runs_are_confirmed():
    workload = COMMAND.removesuffix(" --seed {seed}")
    (warning,) = check_study(*study_of(workload=workload))[2]
    assert "{seed}" in warning
    assert check_study(*study_of(workload=workload, confirm={"race": 0}))[2] == []


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        (
            {"fixed": {"framework": "python"}, "space": {"num_workers": [1, 2]}},
            "CONFLICT",
            ["num_workers: 1", "framework: torch"],
        ),
        ({"workload": COMMAND, "fixed": {"framework": "torch"}}, "CONFLICT", ["framework"]),
        ({"fixed": {"strategy": "single_process"}}, "CONFLICT", ["single_process"]),
        (
            {"objective": {"target": 0.9, "metric_pattern": "acc="}},
            "INVALID_VALUE",
            ["'objective.metric_pattern'", "accuracy=("],
        ),
    ],
)
def test_keys_that_conflict_with_an_own_loop_are_refused(changes, code, names):
    with refused(ErrorCode[code], *names):
        study_of(**changes)


def test_a_function_is_found_in_its_file(folder):
    workload, dataset = load_workload_dataset("train.py:train", DatasetSpec(name="workload"))
    assert isinstance(workload, OwnLoop)
    assert workload.function is not None
    assert workload.function.__module__ == "train"
    assert len(dataset.train) == 0
    assert find_workload(COMMAND).function is None
    other = folder / "other"
    other.mkdir()
    (other / "train.py").write_text("from helper import name\ndef train(run):\n    return name\n")
    (other / "helper.py").write_text("name = 'beside'\n")
    assert find_workload("other/train.py:train").function(None) == "beside"
    (other / "__init__.py").touch()
    (other / "parts.py").write_text("from .helper import name\ndef run(run):\n    return name\n")
    assert find_workload("other/parts.py:run").function(None) == "beside"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("trian.py:train", "trian.py"),
        ("train.py:trian", "'train'"),
        ("broken.py:train", "ModuleNotFoundError"),
        ("train:train", "train.py:train"),
    ],
)
def test_a_function_that_is_not_found_is_refused(name, part, folder):
    (folder / "broken.py").write_text("import no_such_module\n")
    with pytest.raises(UserError) as caught:
        find_workload(name)
    assert part in str(caught.value)


def test_an_own_loop_is_judged_by_the_metric_it_reports():
    def judged(**objective: Any) -> Objective:
        spec = RunSpec(workload="train.py:train", objective=Objective(**objective))
        return check_task(spec, ["torch"], is_target_ours=True)[0]

    assert judged(target=0.9).judged_by.name == "accuracy"
    assert judged(target=0.9).baseline_value is None
    assert judged(target=0.9, metric="mae").judged_by.name == "mean_absolute_error"
    dice = judged(target=0.9, metric="dice", direction="max", is_share=True)
    assert (dice.judged_by.direction, dice.judged_by.is_share, dice.kind) == ("max", True, BUDGET)
    with pytest.raises(UserError):
        judged(target=0.9, metric="dice")
    with refused(ErrorCode.CONFLICT, "objective.direction", "accuracy"):
        judged(target=0.9, metric="accuracy", direction="min")


VALUES = {"learning_rate": 0.1, "model.block": {"kernel": 3, "act": None}}


@pytest.mark.parametrize(
    ("command", "value", "words"),
    [
        ("--x {model.x}", True, ["--x", "true"]),
        ("--x={model.x}", None, ["--x=null"]),
        ("{--x:model.x}", True, ["--x"]),
        ("{--x:model.x}", False, []),
        ("{--x:model.x} -v", None, ["-v"]),
        ("{--x:model.x}", 0.1, ["--x", "0.1"]),
        ("{--x:model.x}", 0, ["--x", "0"]),
        ("{--x:model.x}", "", ["--x", ""]),
        ("{-x:model.x}", [64, 32], ["-x", "[64, 32]"]),
        ("{--x:model.x}", "a b; rm '$HOME'", ["--x", "a b; rm '$HOME'"]),
        ("{--x=:model.x}", -3, ["--x=-3"]),
        ("{--x=:model.x}", True, ["--x"]),
        ("{--x|--no-x:model.x}", False, ["--no-x"]),
        ("{--x|--no-x:model.x}", True, ["--x"]),
        ("{--x|--no-x:model.x}", None, []),
        ("'{--x:model.x}'", True, ["--x"]),
        ("{--kernel:model.block.kernel} {model.block.act}", 1, ["--kernel", "3", "null"]),
        ("--block {model.block}", 1, ["--block", '{"kernel": 3, "act": null}']),
        ("{model.x}", "{learning_rate}", ["{learning_rate}"]),
        ("a{b} {} {model.x}", 1, None),
        ("--x={--x:model.x}", 1, None),
        ("{--x: model.x}", 1, None),
        ("{--x:model.y}", 1, None),
        ("{--x:model.block.size}", 1, None),
    ],
)
def test_command_options_depend_on_their_values(command, value, words):
    values = VALUES | {"model.x": value}
    if words is None:
        with pytest.raises(UserError) as caught:
            words_of(f"$ python {command}", values)
        assert caught.value.code in (ErrorCode.COMMAND, ErrorCode.UNKNOWN_KEY)
    else:
        assert words_of(f"$ python {command}", values) == ["python", *words]


def test_keys_inside_command_options_count_as_used():
    space = {"learning_rate": [0.1], "model": {"bn": [True, None], "block": [{"k": 1}, {"k": 2}]}}
    command = "$ a.py {--lr:learning_rate} {--bn:model.bn} -k {model.block.k} {--seed:seed}"
    study, space = study_of(workload=command, space=space)
    assert check_study(study, space)[2] == []


def test_a_launched_command_has_one_process_per_worker():
    spec = RunSpec(workload="$torchrun python train.py {num_workers}", num_workers=2)
    assert (spec.framework, spec.replicas_per_process) == ("torch", 1)
    assert words_of(spec.workload, {"num_workers": 2}) == ["python", "train.py", "2"]
    alone = RunSpec(workload="$ python train.py", num_workers=2)
    assert (alone.framework, alone.replicas_per_process) == ("python", 2)
    with refused(ErrorCode.CONFLICT, "framework torch"):
        validate(RunSpec, {"workload": spec.workload, "framework": "tensorflow"}, "spec")


def test_launch_requires_a_command():
    command = "python train.py --lr {learning_rate}"
    settings = TrainOptions(command=command, launch="torchrun").trained()
    assert settings == {"workload": f"$torchrun {command}"}
    with pytest.raises(UserError):
        TrainOptions(launch="torchrun").trained()


@pytest.mark.parametrize(
    ("imports", "framework"),
    [("import keras\n", "tensorflow"), ("from tensorflow import keras\n", "tensorflow")]
    + [(text, None) for text in ("import torch\nimport keras\n", "import lightning\n", "")],
)
def test_the_framework_of_a_loop_is_the_one_its_file_imports(imports, framework, folder):
    (folder / "fit.py").write_text(f"{imports}def train(run): ...\n")
    content = CONTENT | {"workload": "fit.py:train"}
    assert framework_of("fit.py:train") == framework
    assert build_study(content, "s.yaml")[0].fixed.get("framework") == framework
    fixed = content | {"fixed": {"framework": "torch"}}
    assert build_study(fixed, "s.yaml")[0].fixed["framework"] == "torch"
    assert framework_of("missing.py:train") is None
