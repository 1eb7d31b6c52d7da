"""Checks before anything starts: room, addresses, evaluations, models, GPUs."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raybench.cluster.layout import Capacity, Node
from raybench.data.load import load_dataset
from raybench.runs import preflight
from raybench.runs.preflight import (
    ASKED_AHEAD,
    GPUS,
    check_address,
    check_evaluations,
    check_gpus,
    check_room,
    check_study,
    check_task,
    default_concurrency,
    drop_worker_counts_without_room,
    files_of,
    groups,
    num_queued_ahead,
    spec_on_gpus,
    with_gpus,
)
from raybench.search.reference import reference_spec
from raybench.search.search import Search
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import ResourceRequest, RunSpec
from raybench.spec.study import build_study
from raybench.training.machine import GpusSeen
from tests.refusals import refused
from tests.search.made_up import run_all

STUDY: dict[str, Any] = {
    "objective": {"target": 0.9},
    "space": {"framework": ["torch", "tensorflow"], "num_workers": [1, 2]},
}
ONE_CORE = Capacity((Node(1, 0),), 0.0)


def checked(**objective: Any) -> Any:
    spec = RunSpec.model_validate({"dataset": "digits", "objective": objective})
    return check_task(spec, ["torch"])[0]


def test_the_metric_and_its_chance_level_are_named_before_anything_runs() -> None:
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


def test_an_auto_target_is_not_compared_with_the_baseline() -> None:
    content = STUDY | {"dataset": "digits", "objective": {"metric": "loss", "target": "auto"}}
    study, dataset, _ = check_study(*build_study(content, "test"))
    assert (study.objective.metric, study.needs_target) == ("loss", True)
    assert study.run_spec({}).objective.baseline_value == study.objective.baseline_value
    assert dataset.name == "digits"


def test_the_default_target_applies_only_to_accuracy() -> None:
    spec = RunSpec.model_validate({"dataset": "digits"})
    assert check_task(spec, ["torch"], is_target_ours=True)[0].target == 0.95
    loss = spec.model_copy(update={"objective": Objective(metric="loss", target=0.95)})
    objective = check_task(loss, ["torch"], is_target_ours=True)[0]
    assert (objective.kind, objective.target) == ("best_at_budget", None)


def test_metrics_of_a_workload_have_no_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    for metric in (None, "loss"):
        objective = Objective(metric=metric, kind="best_at_budget")
        checked_objective, _ = check_task(
            spec.model_copy(update={"objective": objective}), ["torch"]
        )
        assert (checked_objective.metric, checked_objective.baseline_value) == (
            metric or "dice",
            None,
        )
    top5 = Objective(metric="top5", target=0.9)
    checked_objective, _ = check_task(spec.model_copy(update={"objective": top5}), ["torch"])
    assert (checked_objective.metric, checked_objective.baseline_value) == ("top5_accuracy", 0.5)
    taken = spec.model_copy(update={"workload": "own_metrics_a:Taken"})
    with refused(ErrorCode.CONFLICT, "objective.metric", "samples"):
        check_task(taken, ["torch"])


def test_worker_counts_without_room_are_left_out_and_reported() -> None:
    study, space = build_study(STUDY, "test")
    assert default_concurrency(study, space, Capacity((Node(3, 0), Node(1, 0)), 0.0)) == 4
    content, words = drop_worker_counts_without_room(STUDY, study, space, ONE_CORE)
    assert content["space"]["num_workers"] == [1]
    (sentence,) = words
    assert "num_workers 2" in sentence
    assert "--address" in sentence
    check_room(*build_study(content, "test"), ONE_CORE)
    assert drop_worker_counts_without_room(STUDY, study, space, Capacity((Node(2, 0),), 0.0)) == (
        STUDY,
        [],
    )


def test_a_study_without_room_is_refused() -> None:
    content = STUDY | {"space": {"num_workers": [2, 64]}}
    study, space = build_study(content, "test")
    assert drop_worker_counts_without_room(content, study, space, ONE_CORE) == (content, [])
    with refused(ErrorCode.NO_ROOM, "2 workers"):
        check_room(study, space, ONE_CORE)


@pytest.mark.parametrize(
    ("fixed", "search", "is_local", "number"),
    [
        ({"gpus_per_worker": 1}, {}, True, ASKED_AHEAD),
        ({}, {}, False, ASKED_AHEAD),
        ({}, {}, True, 0),  # idle groups of our own Ray leave their cores to others
        ({"gpus_per_worker": 1}, {"concurrency": 2}, True, 0),
    ],
)
def test_trials_are_queued_ahead_if_idle_groups_keep_their_machines(
    fixed: dict[str, Any], search: dict[str, Any], is_local: bool, number: int
) -> None:
    study, space = build_study(STUDY | {"fixed": fixed, "search": search}, "test")
    assert num_queued_ahead(study, space, is_local=is_local) == number
    one_group = STUDY["space"] | {"num_workers": [1], "framework": ["torch"]}
    study, space = build_study(
        STUDY | {"space": one_group, "fixed": fixed, "search": search}, "test"
    )
    assert num_queued_ahead(study, space, is_local=is_local) == 0


def test_files_that_workers_must_read_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("loop.py", "mine.py", "rows.csv"):
        (tmp_path / name).touch()
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(__file__=str(tmp_path / "mine.py")))  # type: ignore[arg-type]
    table = {"name": "csv", "path": "rows.csv", "label": "y"}
    for workload, data, names in (
        ("loop.py:train", "digits", ["loop.py"]),
        ("mine:Mine", table, ["rows.csv", "mine.py"]),
        ("mnist_small", "digits", []),
        ("torchvision:resnet18", "digits", []),
    ):
        spec = RunSpec.model_validate({"workload": workload, "dataset": data})
        assert files_of(spec) == [tmp_path / name for name in names]


def test_replicas_of_one_process_request_one_node() -> None:
    fixed = {"strategy": "single_process", "framework": "tensorflow"}
    content = STUDY | {"space": {"num_workers": [1, 2, 4]}, "fixed": fixed}
    study, space = build_study(content, "test")
    assert [group.cpus_per_worker for group in groups(study, space)] == [1, 2, 4]
    assert {group.num_workers for group in groups(study, space)} == {1}
    three = Capacity((Node(3, 0), Node(3, 0)), 0.0)
    kept_space, left_out = drop_worker_counts_without_room(content, study, space, three)
    assert kept_space["space"] == {"num_workers": [1, 2]}
    assert left_out[0].startswith("num_workers 4:")
    assert check_room(study, space, three)[0].startswith("workers 4 of 4 CPU:")
    one_core_each = Capacity((Node(1, 0), Node(1, 0)), 0.0)
    study, space = build_study(content | {"space": {"num_workers": [2, 4]}}, "test")
    with refused(ErrorCode.NO_ROOM, "2 replicas", "2 CPU"):
        check_room(study, space, one_core_each)


CPUS = {"when": {"num_workers": 1}, "values": [1, 2]}, {"when": {"num_workers": 2}, "values": [1]}


@pytest.mark.parametrize(("cpus", "left"), [([2, 1], ["workers 2 of 2 CPU"]), (list(CPUS), [])])
def test_combinations_without_room_are_left_out_and_reported(
    cpus: list[Any], left: list[str], tmp_path: Path
) -> None:
    """Combinations that `when` leaves out are not mentioned."""
    space = {"num_workers": [2, 1], "cpus_per_worker": cpus}
    content = STUDY | {"space": space, "search": {"trials": 20, "priors": False}}
    study, parsed = build_study(content, "test")
    two = Capacity((Node(2, 0),), 0.0)
    assert [warning.partition(":")[0] for warning in check_room(study, parsed, two)] == left

    def has_room(spec: RunSpec) -> bool:
        return two.may_fit(spec.resources)

    search = Search(study, parsed, tmp_path, has_room=has_room)
    tried = {(record.spec.num_workers, record.spec.cpus_per_worker) for record in run_all(search)}
    assert tried == {(1, 1), (1, 2), (2, 1)}
    assert search.left_out() is None
    assert has_room(reference_spec(study, parsed, has_room=has_room))


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "ray://host:10001", "host:port", ":6379"])
def test_invalid_addresses_are_refused(address: str) -> None:
    with refused(ErrorCode.INVALID_VALUE, "--address", address):
        check_address(address)
    for fine in (None, "auto", "local", "host:6379"):
        check_address(fine)


@pytest.mark.parametrize(
    ("fixed", "is_refused"),
    [
        ({"epochs": 1.0, "eval_every_samples": 1257}, True),
        ({"epochs": 2.0, "eval_every_samples": 1257}, False),
        ({"epochs": 1.0}, False),  # the reference sets a cadence that has them
        ({"epochs": 0.05, "batch_size_per_worker": 64}, True),  # one step
    ],
)
def test_targets_that_cannot_be_held_are_refused(fixed: dict[str, Any], is_refused: bool) -> None:
    objective = {"target": 0.9, "hold": 2}
    study, _ = build_study(STUDY | {"objective": objective, "fixed": fixed}, "test")
    dataset = load_dataset(study.dataset)
    if not is_refused:
        check_evaluations(study, dataset)
        return
    with refused(ErrorCode.CONFLICT, "objective.hold", 2):
        check_evaluations(study, dataset)


OWN_MODEL = """
from raybench import Workload

class Net(Workload):
    name, input_shape, num_classes = "own", (8, 8, 1), 10

    def __init__(self, units=10):
        if units > 64:
            raise ValueError("too wide")

    def build_torch(self):
        raise AssertionError("built before anything runs")
"""


def test_samples_in_two_splits_are_reported(tmp_path: Path) -> None:
    rows = [f"{number % 90},{'xy'[number % 2]},{'ab'[number % 2]}" for number in range(200)]
    file = tmp_path / "table.csv"
    file.write_text("\n".join(["number,kind,label", *rows]))
    data = {"name": "csv", "path": str(file), "label": "label"}
    content = STUDY | {"workload": "mlp", "dataset": data, "fixed": {"framework": "torch"}}
    content |= {"objective": {"target": 0.9}, "space": {"optimizer": ["adam"]}}
    _, _, warnings = check_study(*build_study(content, "test"))
    assert any("training sample" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("space", "code", "names"),
    [
        ({"frozen_epochs": [0.0, 1.0]}, ErrorCode.INVALID_MODEL, ["frozen_epochs", "own"]),
        ({"weights": ["none", "none.pth"]}, ErrorCode.NOT_FOUND, ["none.pth"]),
        ({"weights": ["none", "cached"]}, ErrorCode.CONFLICT, ["cached", "own"]),
        ({"model": {"units": [10, 65]}}, ErrorCode.USER_CODE, ["too wide"]),
        ({"model": {"unit": [10, 20]}}, ErrorCode.UNKNOWN_KEY, ["model.unit", "units"]),
    ],
)
def test_invalid_model_settings_are_refused_without_building_the_model(
    space: dict[str, Any],
    code: ErrorCode,
    names: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "own_starts.py").write_text(OWN_MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    content = {"objective": {"target": 0.5}, "workload": "own_starts:Net", "dataset": "digits"}
    content |= {"space": {"learning_rate": [0.1, 0.2], **space}, "fixed": {"framework": "torch"}}
    with refused(code, *names):
        check_study(*build_study(content, "test"))


@pytest.mark.parametrize(
    ("workload", "num_remarks"),
    [("$ python train.py", 1), ("$torchrun python train.py", 0), ("loop.py:train", 0)],
)
def test_launchers_and_trainers_find_workers_without_num_workers(
    workload: str, num_remarks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "from raybench.integrations import HuggingFace\ndef train(run): ...\n"
    (tmp_path / "loop.py").write_text(text)
    content = {"objective": {"target": 0.5}, "workload": workload, "space": {"num_workers": [1, 2]}}
    _, _, warnings = check_study(*build_study(content, "test"))
    assert sum("num_workers" in warning for warning in warnings) == num_remarks


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs that TensorFlow does not see."""
    visible = {"torch": GpusSeen(names=("H100", "H100")), "tensorflow": GpusSeen()}
    monkeypatch.setattr(preflight, "gpus_of_framework", visible.__getitem__)


TWO_GPUS = Capacity((Node(16, 2),), 0.0)


@pytest.mark.parametrize(
    ("changes", "settings", "all_workers", "fixed", "says"),
    [
        ({}, {}, False, {"gpus_per_worker": 1}, "2 GPUs"),
        ({}, None, False, {"gpus_per_worker": 1}, "2 GPUs"),
        ({"framework": ["torch", "tensorflow"]}, {}, False, {}, "tensorflow"),
        ({"num_workers": [4, 8]}, {}, False, {}, "4 workers"),
        ({"num_workers": [1, 4]}, {}, False, {"gpus_per_worker": 1}, "2 GPUs"),
        ({"num_workers": [1, 4]}, {}, True, {}, "4 workers"),
        *(({}, {GPUS: gpus}, False, {GPUS: gpus}, None) for gpus in (0, 1)),
    ],
)
def test_available_gpus_are_used_by_default(
    changes: dict[str, Any],
    settings: dict[str, int] | None,
    all_workers: bool,
    fixed: dict[str, int],
    says: str | None,
    torch_alone: None,
) -> None:
    """With `all_workers`, worker counts named by the user are kept."""
    space = STUDY["space"] | {"framework": ["torch"]} | changes
    content = STUDY | {"space": space, "fixed": settings}
    built = build_study(content | {"fixed": settings or {}}, "test")
    adapted, words = with_gpus(content, *built, TWO_GPUS, all_workers=all_workers)
    assert adapted == content | {"fixed": fixed}
    assert len(words) == (says is not None)
    assert says is None or says in words[0]


@pytest.mark.parametrize(
    ("content", "gpus", "says"),
    [
        ({}, 1, "--set gpus_per_worker=0"),
        ({"framework": "tensorflow"}, 0, "tensorflow"),
        ({"num_workers": 3}, 0, "3 workers"),
        ({"gpus_per_worker": 0}, 0, None),
        ({"gpus_per_worker": 0.5}, 0.5, None),
        (RunSpec().document(), 0, None),
    ],
)
def test_one_run_trains_on_available_gpus(
    content: dict[str, Any], gpus: float, says: str | None, torch_alone: None
) -> None:
    spec = RunSpec.model_validate(content)
    adapted, words = spec_on_gpus(spec, TWO_GPUS)
    assert adapted == spec.model_copy(update={"gpus_per_worker": gpus})
    assert (says is None) == (not words)
    assert says is None or says in words[0]
    assert spec_on_gpus(spec, Capacity((Node(16, 0),), 0.0)) == (spec, [])


def test_a_framework_that_sees_no_gpus_is_refused_before_anything_starts(torch_alone: None) -> None:
    check_gpus([ResourceRequest("torch", 2, gpus_per_worker=1), ResourceRequest("tensorflow", 1)])
    of_gpus = ResourceRequest("tensorflow", 1, gpus_per_worker=0.5)
    with refused(ErrorCode.UNSUPPORTED, "tensorflow", "pip install"):
        check_gpus([of_gpus])


def test_a_framework_that_does_not_answer_is_not_reported_as_without_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = "it did not answer within 120 s"
    monkeypatch.setattr(preflight, "gpus_of_framework", lambda framework: GpusSeen(problem=late))
    content = {**STUDY, "space": {"framework": ["tensorflow"]}}
    _, (warning,) = with_gpus(content, *build_study(content, "test"), TWO_GPUS, all_workers=False)
    with refused(ErrorCode.UNSUPPORTED) as error:
        check_gpus([ResourceRequest("tensorflow", 1, gpus_per_worker=1)])
    for sentence in (warning, str(error.value)):
        assert f": {late}" in sentence
        assert "install" not in sentence
