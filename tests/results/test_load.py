"""`raybench.load`; the other files of this folder make their results with `results_folder`."""

import json
import math
import re
from dataclasses import replace
from time import perf_counter

import pandas as pd
import pytest

import raybench
from raybench.core.clock import PHASES
from raybench.core.documents import read_mapping, to_yaml
from raybench.core.errors import UserError
from raybench.core.gradient_noise import NoiseSums, NoiseTerms
from raybench.core.objective import Objective
from raybench.core.outcome import RunOutcome
from raybench.core.record import Evaluation
from raybench.core.spec import RunSpec
from raybench.core.step_times import StepTimes
from raybench.results.load import describe, load
from raybench.results.records import read_records
from raybench.results.store import STUDY_FILE, Store
from raybench.results.trials import CURVE_TYPES, EXTRA_TYPES, TRIAL_TYPES

OBJECTIVE = Objective(target=0.9, max_train_seconds=60.0)
PHASE_SECONDS = {"queue": 1.0, "start": 8.0, "setup": 2.0, "compile": 3.0, "eval": 0.5}
PHASE_SECONDS |= {"checkpoint": 0.25, "report": 0.125}
POINT = {"epoch": 0.5, "train_loss": 1.0, "learning_rate": 1e-3, "samples_per_s": 100.0}
# What design.md section 4 says scripts may rely on.
TRIAL_COLUMNS = re.split(
    r",\s*",
    """trial, phase, state, failure, framework, workload, num_parameters, num_workers,
    batch_size_per_worker, global_batch_size, optimizer, learning_rate, seed,
    time_to_target_s, best_accuracy, queue_s, start_s, setup_s, compile_s, train_s, input_s,
    eval_s, checkpoint_s, report_s, wall_s, samples_per_s, worker_seconds""",
)
CURVE_COLUMNS = ["trial", "epoch", "samples", "train_s", "train_loss", "accuracy"]
CURVE_COLUMNS += ["learning_rate", "samples_per_s"]


def run_line(
    trial,
    time_to_target_s=None,
    *,
    best_value=None,
    role="trial",
    source=None,
    failure=None,
    stop=None,
    outer_stop="scheduler",
    train_s=None,
    objective=OBJECTIVE,
    test_value=None,
    concurrent=0,
    **spec,
):
    """One finished run; without a time it trained all its seconds and missed the target.

    The source of a run of the race, and of a confirming run, is the trial it is named after.
    """
    if best_value is None:
        best_value = 0.8 if time_to_target_s is None else 0.92
    train_s = train_s or time_to_target_s or 60.0
    if not (stop or failure) and time_to_target_s is not None:
        stop = "target"
    last = Evaluation(
        **POINT,
        index=0,
        samples=1000,
        train_s=train_s,
        value=best_value,
        best_value=best_value,
        time_to_target_s=time_to_target_s,
        stop=stop,
    )
    outcome = RunOutcome(
        evaluation=last,
        is_over=True,
        failure=failure,
        message=f"it was {failure}" if failure else None,
        ledger=PHASE_SECONDS | {"train": train_s, "input": 0.0625},
        wall_s=sum(PHASE_SECONDS.values()) + train_s,
        num_parameters=402_442,
        chance=0.1,
        test_value=test_value,
        concurrent=concurrent,
    )
    if role in ("race", "confirm") and source is None:
        source = trial.partition("-")[0]
    run = outcome.record(
        trial,
        RunSpec(objective=objective, **spec),
        role=role,
        source=source,
        stopped_by=outer_stop,
    )
    return run.line()


def curve(trial, accuracies):
    """The evaluations of a run, one second and 100 samples apart."""
    return [
        Evaluation(
            **POINT, index=index, samples=100 * (index + 1), train_s=1.0 + index, value=accuracy
        ).line(trial)
        for index, accuracy in enumerate(accuracies)
    ]


def results_folder(folder, lines, *, objective=OBJECTIVE):
    """Write a study with these records and load it."""
    store = Store(folder)
    store.write_yaml(STUDY_FILE, {"study": {"objective": objective.model_dump(mode="json")}})
    for line in lines:
        store.append(line)
    store.close()
    return load(folder)


def test_columns_are_the_contract_and_stand_first(tmp_path):
    results = results_folder(tmp_path, [*curve("0000", [0.5]), run_line("0000", 2.0)])
    assert list(results.trials.columns)[: len(TRIAL_COLUMNS)] == TRIAL_COLUMNS
    assert list(results.curves.columns)[: len(CURVE_COLUMNS)] == CURVE_COLUMNS
    assert not results.trials.columns.duplicated().any()


def test_a_row_holds_what_was_recorded(tmp_path):
    line = run_line(
        "0003",
        4.0,
        num_workers=2,
        batch_size_per_worker=32,
        accumulate=3,
        framework="tensorflow",
        optimizer="lars",
        learning_rate=0.5,
        seed=11,
    )
    row = results_folder(tmp_path, [line]).trials.iloc[0].to_dict()
    expected = {
        "trial": "0003",
        "phase": "search",
        "state": "complete",
        "framework": "tensorflow",
        "workload": "mnist_small",
        "num_parameters": 402_442,
        "num_workers": 2,
        "batch_size_per_worker": 32,
        "global_batch_size": 192,
        "optimizer": "lars",
        "learning_rate": 0.5,
        "seed": 11,
        "time_to_target_s": 4.0,
        "best_accuracy": 0.92,
        "train_s": 4.0,
        "input_s": 0.0625,
        "start_s": 8.0,
        "wall_s": 18.875,
        "samples_per_s": 250.0,
        "worker_seconds": 8.0,
    }
    assert {key: row[key] for key in expected} == expected
    phases = ("queue", "start", "setup", "compile", "train", "eval", "checkpoint", "report")
    assert sum(row[f"{phase}_s"] for phase in phases) == row["wall_s"]
    assert row["failure"] is None or math.isnan(row["failure"])


def test_a_run_that_never_trained_has_no_speed(tmp_path):
    line = run_line("0000", failure="oom")
    line["ledger"]["train"] = 0.0
    row = results_folder(tmp_path, [line]).trials.iloc[0]
    assert row["samples_per_s"] is None or math.isnan(row["samples_per_s"])
    assert (row["state"], row["failure"], row["worker_seconds"]) == ("failed", "oom", 0.0)


def test_a_run_that_ran_again_counts_once_with_its_last_curve(tmp_path):
    lines = [
        *curve("0000", [0.1, 0.2, 0.3]),
        run_line("0000", outer_stop="interrupted"),
        *curve("0001", [0.6]),
        run_line("0001", 9.0),
        *curve("0000", [0.5, 0.9]),
        run_line("0000", 2.0),
    ]
    results = results_folder(tmp_path, lines)
    assert list(results.trials["trial"]) == ["0001", "0000"], "the order they finished in"
    assert results.trials.set_index("trial").loc["0000", "time_to_target_s"] == 2.0
    own = results.curves[results.curves["trial"] == "0000"]
    assert list(own["accuracy"]) == [0.5, 0.9]
    assert list(own["samples"]) == [100, 200]


def test_evaluations_that_were_repeated_count_once_the_last_of_them(tmp_path):
    """A run that lost its workers repeats what came after its checkpoint, and all that followed."""
    first, again = curve("0000", [0.1, 0.2, 0.3, 0.4]), curve("0000", [0.1, 0.25, 0.35])
    lines = [*first, *again[1:], run_line("0000", 2.0)]
    curves = results_folder(tmp_path, lines).curves
    assert list(curves["accuracy"]) == [0.1, 0.25, 0.35]


def test_curves_of_runs_at_the_same_time_are_kept_apart(tmp_path):
    one, other = curve("0000", [0.1, 0.2]), curve("0001", [0.6, 0.7])
    lines = [one[0], other[0], other[1], one[1], run_line("0001", 9.0), run_line("0000", 8.0)]
    curves = results_folder(tmp_path, lines).curves
    assert list(curves[curves["trial"] == "0000"]["accuracy"]) == [0.1, 0.2]
    assert list(curves[curves["trial"] == "0001"]["accuracy"]) == [0.6, 0.7]


def test_a_curve_without_a_finished_run_is_left_out(tmp_path):
    results = results_folder(
        tmp_path, [*curve("0000", [0.1]), *curve("0001", [0.9]), run_line("0001", 1.0)]
    )
    assert set(results.curves["trial"]) == set(results.trials["trial"]) == {"0001"}


def test_a_run_that_fails_on_its_second_attempt_has_not_the_curve_of_the_first(tmp_path):
    lines = [*curve("0000", [0.1, 0.2]), run_line("0000", outer_stop="interrupted")]
    results = results_folder(tmp_path, [*lines, run_line("0000", failure="oom")])
    assert results.curves.empty


def test_a_study_without_runs_has_all_columns(tmp_path):
    results = results_folder(tmp_path, [])
    assert list(results.trials.columns)[: len(TRIAL_COLUMNS)] == TRIAL_COLUMNS
    assert list(results.curves.columns) == CURVE_COLUMNS
    assert results.trials.empty
    assert results.curves.empty
    assert results.specs == {}


def test_specs_are_whole_and_the_target_is_the_studys(tmp_path):
    results = results_folder(tmp_path, [run_line("0000", 2.0, seed=5)])
    assert results.specs["0000"].seed == 5
    assert results.specs["0000"] == results.runs["0000"].spec
    assert results.target == 0.9
    budget = Objective(kind="best_at_budget")
    assert results_folder(tmp_path / "budget", [], objective=budget).target is None


@pytest.mark.parametrize(
    ("trial", "phase", "role", "source"),
    [
        ("0003", "search", "trial", None),
        ("0003.tf2", "search", "finalist", "0003"),
        ("0003-confirm0", "confirm", "confirm", "0003"),
        ("0003.tf2-confirm1", "confirm", "confirm", "0003.tf2"),
        ("reference0", "reference", "reference", None),
        ("sentinel-beside", "reference", "sentinel", None),
    ],
)
def test_a_run_of_the_first_versions_has_the_role_that_its_phase_and_name_tell(
    tmp_path, trial, phase, role, source
):
    results_folder(tmp_path, [])
    known = [name for name in (*PHASES, "input") if name != "lost"]
    ledger = ", ".join(f'"{name}": 1.5' for name in known)
    (tmp_path / "records.jsonl").write_text(
        f"""{{"kind": "run", "trial": "{trial}", "phase": "{phase}", "state": "complete",
        "failure": null, "message": null, "spec": {{"workload": "mnist_small",
        "framework": "torch", "num_workers": 2, "batch_size_per_worker": 32, "accumulate": 1,
        "optimizer": "adam", "learning_rate": 0.01, "seed": 3}}, "num_parameters": 402442,
        "time_to_target_s": 1.5, "best_accuracy": 0.95, "score": NaN, "samples": 1000,
        "ledger": {{{ledger}}}, "wall_s": 12.5}}""".replace("\n", " ")
        + "\n"
    )
    run = load(tmp_path).runs[trial]
    assert (run.role, run.source, run.phase) == (role, source, phase)
    assert run.spec == RunSpec(num_workers=2, batch_size_per_worker=32, learning_rate=0.01, seed=3)
    assert (run.stop, run.test_value, run.concurrent, run.hosts) == (None, None, 0, [])
    assert (run.ledger["lost"], run.ledger["train"], run.restarts) == (0.0, 1.5, 0)
    assert math.isnan(run.score)


def test_role_and_source_are_columns_whatever_a_run_is_called(tmp_path):
    lines = [
        run_line("a-b.c", 2.0),
        run_line("again", 3.0, role="confirm", source="a-b.c"),
        run_line("apart", 2.5, role="finalist", source="a-b.c"),
    ]
    results = results_folder(tmp_path, lines)
    assert list(results.trials["role"]) == ["trial", "confirm", "finalist"]
    assert list(results.trials["source"]) == [None, "a-b.c", "a-b.c"]
    assert list(results.trials["phase"]) == ["search", "confirm", "search"]
    assert list(results.confirmed["trial"]) == ["a-b.c"]


def test_what_is_written_is_read_back_whole(tmp_path):
    lines = [
        run_line("0000", 2.0, role="finalist", source="0001", accumulate=3),
        *curve("x", [0.5]),
    ]
    lines += [run_line("x", failure="nan")]
    results = results_folder(tmp_path, lines)
    assert [run.line() for run in results.runs.values()] == [lines[0], lines[2]]
    assert results.specs["0000"].global_batch_size == results.trials["global_batch_size"][0] == 192


def test_many_records_are_read_in_seconds(tmp_path):
    points, run = curve("0000", [0.5] * 10), run_line("0000", 2.0)
    with (tmp_path / "records.jsonl").open("w") as file:
        for number in range(2000):
            for line in (*points, run):
                file.write(json.dumps(line | {"trial": f"{number:04d}"}) + "\n")
    began = perf_counter()
    records = read_records(tmp_path)
    assert perf_counter() - began < 10
    assert (len(records.runs), sum(map(len, records.curves.values()))) == (2000, 20_000)


def test_a_torn_last_record_is_no_trouble(tmp_path):
    results_folder(tmp_path, [run_line("0000", 2.0)])
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"kind": "run", "trial": "0001"')
    assert list(raybench.load(str(tmp_path)).trials["trial"]) == ["0000"]


@pytest.mark.parametrize("missing", ["records.jsonl", STUDY_FILE])
def test_another_folder_is_refused(tmp_path, missing):
    results_folder(tmp_path, [])
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=missing):
        raybench.load(tmp_path)


def test_describe_is_one_line():
    spec = RunSpec(num_workers=4, learning_rate=0.012345)
    assert describe(spec) == "torch 4x64 adam 0.0123"


def with_space(folder, lines, space):
    results_folder(folder, lines)
    content = read_mapping(folder / STUDY_FILE)
    content["study"]["space"] = space
    (folder / STUDY_FILE).write_text(to_yaml(content))
    return load(folder)


def test_every_searched_key_is_a_column_and_in_the_label_where_it_differs(tmp_path):
    space = {
        "optimizer": ["adam"],
        "weight_decay": {"low": 0.0, "high": 0.1},
        "schedule": ["constant", "cosine"],
        "precision": ["fp32"],
    }
    lines = [
        run_line("0000", 2.0, weight_decay=0.0, schedule="constant"),
        run_line("0001", 2.0, weight_decay=0.012345, schedule="cosine"),
    ]
    results = with_space(tmp_path, lines, space)
    assert results.searched == tuple(space)
    assert list(results.trials.columns)[-3:] == ["weight_decay", "schedule", "precision"]
    assert list(results.trials["weight_decay"]) == [0.0, 0.012345]
    assert list(results.trials["schedule"]) == ["constant", "cosine"]
    assert list(results.trials["precision"]) == ["fp32", "fp32"]
    assert list(results.trials["config"]) == [
        "torch 1x64 adam 0.001 weight_decay 0 schedule constant",
        "torch 1x64 adam 0.001 weight_decay 0.0123 schedule cosine",
    ]
    assert results.label(results.specs["0001"]) == results.trials["config"][1]


def test_a_key_that_may_be_none_is_a_column_too(tmp_path):
    lines = [run_line("0000", 2.0), run_line("0001", 2.0, epsilon=1e-8)]
    results = with_space(tmp_path, lines, {"epsilon": [None, 1e-8]})
    assert results.trials["epsilon"].isna().tolist() == [True, False]
    assert results.trials["config"][0].endswith("epsilon None")


@pytest.mark.parametrize("lines", [[], [run_line("0000", failure="oom")], [run_line("0000", 2.0)]])
def test_types_are_those_that_are_documented_whatever_is_missing(tmp_path, lines):
    lines = [line | {"num_parameters": None, "concurrent": 0} for line in lines]
    lines += [run_line("0009", 1.0)] if len(lines) else []
    results = results_folder(tmp_path, lines)
    found = {key: str(kind) for key, kind in results.trials.dtypes.items()}
    assert found == TRIAL_TYPES | EXTRA_TYPES
    curves = {key: str(kind) for key, kind in results.curves.dtypes.items()}
    assert curves == CURVE_TYPES
    if lines:
        assert results.trials["num_parameters"].tolist() == [pd.NA, 402_442]
        assert results.trials.to_csv(index=False).count(",402442,") == 1, "an integer stays one"


def test_times_of_day_and_worker_seconds(tmp_path):
    line = run_line("0000", 2.0, num_workers=4, train_s=5.0)
    line["finished"] = "2026-11-22T10:46:01+00:00"
    missed = run_line("0001", num_workers=4)
    results = results_folder(tmp_path, [line, missed])
    row = results.trials.iloc[0]
    assert row["finished_at"] == pd.Timestamp("2026-11-22 10:46:01", tz="UTC")
    assert (row["worker_seconds"], row["worker_seconds_to_target"]) == (20.0, 8.0)
    assert math.isnan(results.trials["worker_seconds_to_target"][1])


def test_a_time_of_day_that_is_none_is_missing(tmp_path):
    results = results_folder(tmp_path, [run_line("0000", 2.0) | {"finished": "yesterday"}])
    assert results.trials["finished_at"].isna().all()


def test_configurations_rank_the_confirmed_apart_from_single_runs(tmp_path):
    lines = [
        run_line("0000", 5.0),
        run_line("0001", 4.0),
        run_line("0002", 1.0, num_workers=2),  # the luckiest single run
        run_line("0003"),
        run_line("0004", failure="oom"),
    ]
    for trial, times in (("0000", [6.0, 7.0, 8.0]), ("0001", [3.0, 3.5, None])):
        for n, time in enumerate(times):
            stop = None if time else "max_train_seconds"
            spent = time or 30.0
            lines.append(
                run_line(f"{trial}-confirm{n}", time, role="confirm", stop=stop, train_s=spent)
            )
    table = results_folder(tmp_path, lines).configurations
    assert list(table["trial"]) == ["0000", "0001", "0002", "0003"]
    assert list(table["is_confirmed"]) == [True, True, False, False]
    assert list(table["hits"]) == [3, 2, 1, 0]
    assert list(table["runs"]) == [3, 3, 1, 1]
    assert list(table["time_to_target_s"])[:3] == [7.0, 36.5 / 2, 1.0], "a miss costs what it took"
    assert list(table["expected_s"])[:3] == [7.0, 36.5 / 2, 1.0]
    assert list(table["worker_seconds_to_target"])[:3] == [7.0, 36.5 / 2, 2.0]
    assert math.isnan(table["time_to_target_s"][3])
    assert {"config", "framework", "num_workers", "learning_rate"} <= set(table.columns)


def test_what_was_recorded_of_steps_is_read_back(tmp_path):
    measured = {
        "steps": StepTimes.of([0.25, 0.5, 2.0]),
        "evenness": 0.5,
        "memory_peak_bytes": 2**30,
        "bytes_exchanged_per_step": 0,
        "noise_scale": NoiseSums.of([NoiseTerms(1.0, -10.0)]),
    }
    plain = [Evaluation(**POINT, index=i, samples=9, train_s=1.0, value=0.5) for i in (0, 1)]
    points = [plain[0], replace(plain[1], **measured)]
    results_folder(tmp_path, [*(point.line("x") for point in points), run_line("x", 2.0)])
    assert read_records(tmp_path).curves["x"] == points
