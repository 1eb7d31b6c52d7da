"""The search without a cluster, on made-up results."""

import math
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

from raybench.spec.run import Placement, RunSpec
from raybench.stats.record import RunRecord
from tests.search.made_up import (
    RATES,
    STUDY,
    ask,
    journal_of,
    make_search,
    outcome,
    record,
    run_all,
)

GRID = STUDY | {
    "space": {"optimizer": ["adam", "lars"], "learning_rate": [0.001, 0.003, 0.01, 0.03, 0.1]}
}
PLAIN = STUDY | {"search": {"trials": 10, "priors": False}}


@pytest.mark.parametrize(
    "sampler",
    ["tpe", pytest.param("gp", marks=pytest.mark.all), "cmaes", "nsga2", "random", "qmc"],
)
def test_samplers_resume_with_new_configurations_and_model_based_ones_improve(sampler, tmp_path):
    if sampler == "gp":
        pytest.importorskip("torch")

    def judge(name: str, spec: RunSpec) -> RunRecord:
        return record(name, spec, score=abs(math.log(spec.learning_rate / 3e-3)))

    def session(number: int, *before: RunRecord) -> list[RunRecord]:
        settings = {"seed": 1, "sampler": sampler, "priors": False, "trials": number}
        content = STUDY | {"search": settings}
        return run_all(make_search(tmp_path, content, runs=before), judge)

    number = 15 if sampler == "gp" else 25  # its first 10 trials are random, the others take long
    first = session(number)
    resumed = session(number + 5, *first)
    assert (len(first), len(resumed)) == (number, 5)
    rates = [run.spec.learning_rate for run in first + resumed]
    assert len(set(rates)) > 0.7 * len(rates)
    assert not set(rates[:number]) & set(rates[number:]) or sampler in ("cmaes", "nsga2")
    if sampler in ("tpe", "gp", "cmaes"):  # NSGA-II needs more trials
        scores = [run.score for run in first + resumed]
        assert np.median(scores[-10:]) < 0.5 * np.median(scores[:10])


def test_the_seed_determines_the_proposals(tmp_path):
    def first_rate(folder: str, seed: int) -> float:
        settings = {"seed": seed, "priors": False}
        return ask(make_search(tmp_path / folder, STUDY | {"search": settings}))[1].learning_rate

    assert first_rate("a", 3) == first_rate("b", 3) != first_rate("c", 4)


def test_the_totals_of_an_interrupted_run_are_not_taken_from_its_rerun(tmp_path):
    content = STUDY | {"search": {"trials": 3}}
    name, _ = ask(make_search(tmp_path, content, apart=True))
    spec = RunSpec(num_workers=1, batch_size_per_worker=64)
    before = record(name, spec, 10.1, stop=None, stopped_by="interrupted", samples=6_464)
    resumed = make_search(tmp_path, content, apart=True, runs=[before])
    placer = resumed.placer
    assert placer is not None
    wide = RunSpec(num_workers=2, batch_size_per_worker=32)
    placer.observe(name, wide, samples=12_800, train_s=12.0)
    # On one worker, 101 steps of the same batch took 10.1 s; 200 steps on two took 12 s.
    ratio = placer.ratios(spec)[Placement("torch", 2, 32)]
    assert ratio == pytest.approx((12.0 / 200) / (10.1 / 101), rel=1e-3)


@pytest.mark.parametrize("first", [[], [{"learning_rate": 0.5, "optimizer": "lars"}]])
def test_the_users_own_configuration_runs_to_its_end(tmp_path, first):
    settings = {"trials": 9, "cap_factor": None, "first": first}
    search = make_search(tmp_path, STUDY | {"search": settings}, apart=True)
    (own_name, _), other = ask(search), ask(search)
    search.on_end(record(*other, 0.5))
    assert search.on_result(own_name, outcome(5.0, value=0.5)).stop == (
        None if first else "scheduler"
    )


def test_the_speed_model_excludes_seconds_taken_by_other_processes(tmp_path):
    content = STUDY | {"search": {"trials": 9, "cap_factor": None}}
    search = make_search(tmp_path, content, apart=True)
    name, _ = ask(search)
    search.on_result(name, outcome(5.0, ledger={"disturbed": 2.0}))
    assert search.placer is not None
    assert search.placer.totals(name) == (1000, 3.0)


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        ({"cap_factor": None}, {"scheduler"}),
        ({"cap_factor": None, "sampler": "grid"}, {None}),
        ({"early_stopping": False}, {None}),
    ],
)
def test_stop_reasons_by_study_settings(settings, reasons, tmp_path):
    content = GRID if "sampler" in settings else STUDY
    search = make_search(tmp_path, content | {"search": {"trials": 10} | settings})
    search.on_end(record(*ask(search), 0.3))
    stops = set()
    for number in range(8):  # ever worse ones
        name, _ = ask(search)
        stops.add(search.on_result(name, outcome(5.0, value=0.9 - 0.1 * number)).stop)
    assert stops == reasons


@pytest.mark.parametrize("is_new_session", [False, True])
def test_the_cap_uses_the_best_time_of_all_sessions(is_new_session, tmp_path):
    """Placement checks of earlier sessions do not count, although they are recorded."""
    content = STUDY | {"search": {"trials": 4}}
    search = make_search(tmp_path, content)
    best = record(*ask(search), 0.3)
    search.on_end(best)
    if is_new_session:
        placement_check = record(
            "0000.tf2", best.spec, 9.0, role="placement_check", source=best.trial
        )
        search = make_search(tmp_path, content, runs=[best, placement_check])
    name, _ = ask(search)
    assert search.on_result(name, outcome(1.0)).stop == "cap"


def test_skipped_proposals_are_reported(tmp_path):
    search = make_search(tmp_path, RATES)
    assert search.left_out() is None

    def diverge(name: str, spec: RunSpec) -> RunRecord:
        return record(name, spec, failure="nan" if spec.optimizer == "adam" else None)

    run_all(search, diverge)
    assert search.left_out() is not None


@pytest.mark.parametrize("is_new_session", [False, True])
def test_configurations_out_of_memory_run_on_other_placements(tmp_path, *, is_new_session):
    """No configuration is lost by it, nor reported as the worst."""
    space = STUDY["space"] | {"accumulate": [1, 2, 4, 8]}
    content = STUDY | {"search": {"trials": 24}, "space": space}

    def judge(name: str, spec: RunSpec) -> RunRecord:
        if spec.batch_size_per_worker > 64:
            return record(name, spec, 0.0, failure="oom", samples=0)
        return record(name, spec, 2.0)

    search = make_search(tmp_path, content, apart=True)
    runs = run_all(search, judge, most=12 if is_new_session else 24)
    if is_new_session:
        search = make_search(tmp_path, content, apart=True, runs=runs)
        runs += run_all(search, judge)
    lost = [run.spec for run in runs if run.failure]
    assert 0 < len(lost) < 10, "larger ones are known not to fit then"
    fits = [run.spec for run in runs if not run.failure]
    assert max(spec.global_batch_size for spec in fits) > 2 * 64
    arms = attrgetter("global_batch_size", "optimizer", "learning_rate")
    assert {*map(arms, lost[:-1])} <= {*map(arms, fits)}
    reported = [trial.values[0] for trial in journal_of(search).trials if trial.values]
    assert max(reported) < math.log(10), "nothing was told to be the worst"


@pytest.mark.parametrize(
    ("stop", "samples", "is_finished"),
    [
        ("cap", 64, True),
        ("scheduler", 64, True),
        ("time_budget", 64, True),
        ("time_budget", 0, False),
        ("interrupted", 64, False),
    ],
)
def test_a_stopped_trial_runs_again_if_it_was_interrupted_or_did_not_train(
    stop, samples, is_finished, tmp_path
):
    search = make_search(tmp_path, PLAIN)
    ended = replace(record(*ask(search), stop=None, stopped_by=stop), samples=samples)
    search.on_end(ended)
    assert search.num_finished == is_finished
    resumed = make_search(tmp_path / "resumed", PLAIN, runs=[ended])
    assert (ask(resumed)[0] != ended.trial) == is_finished
