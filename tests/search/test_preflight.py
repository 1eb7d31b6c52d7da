"""Checks of a search before it starts: room, evaluations, models, GPUs."""

import pytest

from raybench.cluster.layout import Capacity, Node
from raybench.data.load import load_dataset
from raybench.runs import preflight
from raybench.runs.preflight import GPUS, check_gpus
from raybench.search.preflight import (
    ASKED_AHEAD,
    check_evaluations,
    check_room,
    check_study,
    default_concurrency,
    drop_worker_counts_without_room,
    groups,
    num_queued_ahead,
    with_gpus,
)
from raybench.search.reference import reference_spec
from raybench.search.search import Search
from raybench.spec.errors import ErrorCode
from raybench.spec.run import ResourceRequest, RunSpec
from raybench.spec.study import build_study
from raybench.training.machine import GpusSeen
from tests.factories import TWO_GPUS
from tests.refusals import refused
from tests.search.made_up import run_all

STUDY = {
    "objective": {"target": 0.9},
    "space": {"framework": ["torch", "tensorflow"], "num_workers": [1, 2]},
}


ONE_CORE = Capacity((Node(1, 0),), 0.0)


def test_an_auto_target_is_not_compared_with_the_baseline():
    content = STUDY | {"dataset": "digits", "objective": {"metric": "loss", "target": "auto"}}
    study, dataset, _ = check_study(*build_study(content, "test"))
    assert (study.objective.metric, study.needs_target) == ("loss", True)
    assert study.run_spec({}).objective.baseline_value == study.objective.baseline_value
    assert dataset.name == "digits"


def test_worker_counts_without_room_are_left_out_and_reported():
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


def test_a_study_without_room_is_refused():
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
    fixed, search, is_local, number
):
    study, space = build_study(STUDY | {"fixed": fixed, "search": search}, "test")
    assert num_queued_ahead(study, space, is_local=is_local) == number
    one_group = STUDY["space"] | {"num_workers": [1], "framework": ["torch"]}
    study, space = build_study(
        STUDY | {"space": one_group, "fixed": fixed, "search": search}, "test"
    )
    assert num_queued_ahead(study, space, is_local=is_local) == 0


def test_replicas_of_one_process_request_one_node():
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
def test_combinations_without_room_are_left_out_and_reported(cpus, left, tmp_path):
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


@pytest.mark.parametrize(
    ("fixed", "is_refused"),
    [
        ({"epochs": 1.0, "eval_every_samples": 1257}, True),
        ({"epochs": 2.0, "eval_every_samples": 1257}, False),
        ({"epochs": 1.0}, False),  # the reference sets a cadence that has them
        ({"epochs": 0.05, "batch_size_per_worker": 64}, True),  # one step
    ],
)
def test_targets_that_cannot_be_held_are_refused(fixed, is_refused):
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


def test_samples_in_two_splits_are_reported(tmp_path):
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
    space, code, names, tmp_path, monkeypatch
):
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
    workload, num_remarks, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = "from raybench.integrations import HuggingFace\ndef train(run): ...\n"
    (tmp_path / "loop.py").write_text(text)
    content = {"objective": {"target": 0.5}, "workload": workload, "space": {"num_workers": [1, 2]}}
    _, _, warnings = check_study(*build_study(content, "test"))
    assert sum("num_workers" in warning for warning in warnings) == num_remarks


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
    changes, settings, all_workers, fixed, says, torch_alone
):
    """With `all_workers`, worker counts named by the user are kept."""
    space = STUDY["space"] | {"framework": ["torch"]} | changes
    content = STUDY | {"space": space, "fixed": settings}
    built = build_study(content | {"fixed": settings or {}}, "test")
    adapted, words = with_gpus(content, *built, TWO_GPUS, all_workers=all_workers)
    assert adapted == content | {"fixed": fixed}
    assert len(words) == (says is not None)
    assert says is None or says in words[0]


def test_a_framework_that_does_not_answer_is_not_reported_as_without_gpus(monkeypatch):
    late = "it did not answer within 120 s"
    monkeypatch.setattr(preflight, "gpus_of_framework", lambda framework: GpusSeen(problem=late))
    content = {**STUDY, "space": {"framework": ["tensorflow"]}}
    _, (warning,) = with_gpus(content, *build_study(content, "test"), TWO_GPUS, all_workers=False)
    with refused(ErrorCode.UNSUPPORTED) as error:
        check_gpus([ResourceRequest("tensorflow", 1, gpus_per_worker=1)])
    for sentence in (warning, str(error.value)):
        assert f": {late}" in sentence
        assert "install" not in sentence
