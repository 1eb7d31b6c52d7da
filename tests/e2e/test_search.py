"""A search with both frameworks on 1 and 2 workers; its results folder is checked by column."""

from pathlib import Path

import pandas as pd
import pytest

import raybench
from raybench.data.load import load_dataset
from raybench.data.memory import num_local_cores
from raybench.results.records import read_records
from raybench.spec.documents import read_mapping
from raybench.stats.clock import OTHER, PHASES

from .commands import raybench as run

pytestmark = pytest.mark.ray
SPACE = Path(__file__).with_name("small.yaml")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    work = tmp_path_factory.mktemp("search")
    printed = run("tune", SPACE, cwd=work)
    assert "the fastest" in " ".join(printed.split())
    assert "confirmed by 2 of 2 runs" in " ".join(printed.split())
    assert "Ray" not in printed, "messages of Ray are suppressed"
    return work / "results" / "small"


@pytest.fixture(scope="module")
def trials(folder: Path) -> pd.DataFrame:
    """The table of all runs except reference runs."""
    everything = raybench.load(folder).trials
    return everything[everything["phase"] != "reference"]


def test_the_ledger_accounts_for_every_second(folder):
    """Each phase is measured; the rest is small at least in the run that other processes have
    disturbed least, which may take the core between two readings of the clock."""
    trials = raybench.load(folder).trials
    runs = trials[trials["state"] == "complete"]
    assert len(runs) >= 6
    assert ((runs["other_s"].abs() / runs["wall_s"].clip(lower=1.0)).min()) < 0.1
    for row in runs.to_dict("records"):
        total = sum(row[f"{phase}_s"] for phase in (*PHASES, OTHER))
        assert total == pytest.approx(row["wall_s"], abs=1e-6)


def test_only_confirmed_winners_read_the_test_split(folder):
    trials = raybench.load(folder).trials
    has_read = trials["test_accuracy"].notna()
    assert set(trials["role"][has_read]) == {"confirm"}
    assert has_read[trials["role"] == "confirm"].all()


def test_study_yaml(folder):
    study = read_mapping(folder / "study.yaml")
    assert study["study"]["objective"]["target"] == 0.9
    assert study["target_set_by"] == "the user"
    assert {"python", "ray", "torch", "tensorflow", "optuna"} <= set(study["versions"])
    assert study["machine"]["cores"] >= 1
    assert "raybench.tune" in study["command"]


@pytest.mark.skipif(num_local_cores() < 2, reason="two workers need two cores")
def test_every_combination_was_tried(trials):
    search = trials[trials["phase"] == "search"]
    combinations = set(zip(search["framework"], search["num_workers"], strict=True))
    assert combinations == {(f, n) for f in ("torch", "tensorflow") for n in (1, 2)}
    # Two confirm the fastest, and two the cheapest; each winner runs twice alone.
    roles = list(trials["role"])
    assert 2 <= roles.count("race") <= 4
    assert roles.count("confirm") in (2, 4, 6)
    assert (trials["concurrent"][trials["role"] == "confirm"] == 0).all()
    assert set(search["state"]) == {"complete"}


def test_identities_between_columns(trials):
    for row in trials[trials["stop"] != "cap"].to_dict("records"):
        assert row["num_parameters"] == 402_442
        assert row["global_batch_size"] == row["batch_size_per_worker"] * row["num_workers"]
        assert row["worker_seconds"] == pytest.approx(row["train_s"] * row["num_workers"])
        assert 0 <= row["input_s"] <= row["train_s"]
        assert 0 < row["time_to_target_s"] <= row["train_s"]
        assert row["best_accuracy"] >= 0.9
        assert row["samples_per_s"] > 0


def test_curves_belong_to_the_trials(folder, trials):
    results = raybench.load(folder)
    curves, eval_interval = results.curves, results.study["study"]["fixed"]["eval_every_samples"]
    for row in trials[trials["stop"] != "cap"].to_dict("records"):
        curve = curves[curves["trial"] == row["trial"]]
        assert curve["train_s"].is_monotonic_increasing
        assert eval_interval <= curve["samples"].iloc[0] < eval_interval + row["global_batch_size"]
        assert curve["train_s"].iloc[-1] == pytest.approx(row["train_s"], rel=0.02)
        assert curve["accuracy"].max() == pytest.approx(row["best_accuracy"])
        hit = curve[curve["accuracy"] >= 0.9].iloc[0]
        assert hit["train_s"] == pytest.approx(row["time_to_target_s"])
        # It rises for an epoch (22 steps or 44), within which the target may be reached.
        warm = min(curve["epoch"].iloc[-1], 1.0)
        assert curve["learning_rate"].iloc[-1] == pytest.approx(3e-3 * warm, abs=3e-3 / 20)


def test_records_hold_the_whole_spec(folder):
    runs = [one for one in read_records(folder).runs.values() if one.phase != "reference"]
    assert {(one.role, one.spec.seed) for one in runs} == {
        *(("trial", 0), ("race", 3000), ("confirm", 1000), ("confirm", 1001))
    }
    assert all((one.source is None) == (one.role == "trial") for one in runs)


@pytest.mark.skipif(num_local_cores() < 2, reason="other trials where two workers have no room")
def test_same_command_continues_and_finds_nothing_to_do(folder):
    before = (folder / "records.jsonl").read_bytes()
    # No price is given: another run might be the cheapest by its cost, and would then run alone.
    printed = run("tune", SPACE, "--time-budget", "3000", cwd=folder.parents[1])
    assert "4 trials" in printed
    assert (folder / "records.jsonl").read_bytes() == before
    content = read_mapping(folder / "study.yaml")
    assert content["study"]["search"]["time_budget_s"] == 3000
    assert not content["command"].endswith("3000"), "the command of the trials is kept"
    assert [one["command"].endswith("3000") for one in content["continued"]] == [True]


@pytest.mark.all
def test_best_yaml_runs_again_and_its_model_loads(folder):
    work = folder.parents[1]
    printed = run("train", folder / "best.yaml", cwd=work)
    assert "target 90 % after" in printed
    saved = work / "results" / "train-best"
    trial = raybench.load(saved).trials.iloc[0]
    assert trial["time_to_target_s"] > 0
    (spec,) = raybench.load(saved).specs.values()
    test = load_dataset(spec.dataset).test
    classes = raybench.load_model(saved).raybench.outputs(test.inputs).argmax(axis=1)
    assert (classes == test.labels).mean() == pytest.approx(trial["test_accuracy"], abs=1e-9)
