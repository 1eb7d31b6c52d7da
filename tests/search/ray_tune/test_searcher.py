"""What the searcher proposes, without training: scores are made up."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
from raybench.search.ray_tune.opaque import wrap

from raybench.core.study import build_study
from raybench.search.deadline import Deadline
from raybench.search.ray_tune.searcher import StudySearcher
from raybench.search.sampling.default_rates import HASTE, priors, usual_rate
from raybench.search.sampling.optuna_space import encode
from raybench.search.sampling.optuna_study import NOT_RUN, real_trials
from raybench.speed.factorisation import Factors, factorise
from raybench.speed.placement import Placer

STUDY: dict[str, Any] = {
    "dataset": {"name": "digits", "image_size": 28},
    "objective": {"target": 0.95, "max_train_seconds": 10},
    "search": {"trials": 60, "seed": 0},
    "space": {
        "num_workers": [1, 2],
        "batch_size_per_worker": {"low": 16, "high": 512, "log2": True},
        "optimizer": ["adam", "lars"],
        "learning_rate": [
            {"when": {"optimizer": "adam"}, "low": 1e-4, "high": 1e-1, "log": True},
            {"when": {"optimizer": "lars"}, "low": 1e-2, "high": 10.0, "log": True},
        ],
    },
}


def searcher(folder: Path, **changes: Any) -> StudySearcher:
    study, space = build_study(STUDY | changes, "test")
    return StudySearcher(study, space, folder, Deadline(None, began=time.perf_counter()))


def result(**changes: Any) -> dict[str, Any]:
    return wrap({"train_s": 1.0, "score": 1.0, "stop": "target", "failure": None} | changes)


def end(one: StudySearcher, trial_id: str, content: dict[str, Any]) -> None:
    one.on_trial_complete(trial_id, content)
    one.settle(trial_id)


def search(one: StudySearcher, judge: Any) -> list[dict[str, Any]]:
    """Run a whole search; `judge` gives the result of a spec."""
    specs = []
    while isinstance(config := one.suggest(str(len(specs))), dict):
        specs.append(config["spec"])
        end(one, str(len(specs) - 1), judge(config["spec"]))
    return specs


@pytest.mark.parametrize(
    ("objective", "factor"),
    [
        ({"target": 0.95, "max_train_seconds": 10}, HASTE),
        ({"kind": "accuracy_at_budget", "max_train_seconds": 10}, 1.0),
    ],
)
def test_every_other_start_up_trial_has_its_optimizer_s_usual_rate(
    tmp_path: Path, objective: dict[str, Any], factor: float
) -> None:
    """Or one in proportion to it, where seconds to a target count."""
    one = searcher(tmp_path, search={"trials": 10}, objective=objective)
    specs = search(one, lambda _: result())
    for spec in specs[0:8:2]:
        batch = spec["batch_size_per_worker"] * spec["num_workers"]
        usual = factor * usual_rate(spec["optimizer"], batch)
        assert spec["learning_rate"] == pytest.approx(usual)
    assert {spec["optimizer"] for spec in specs[0:8:2]} == {"adam", "lars"}


def test_priors_that_do_badly_are_dropped(tmp_path: Path) -> None:
    def judge(spec: dict[str, Any]) -> dict[str, Any]:
        batch = spec["batch_size_per_worker"] * spec["num_workers"]
        usual = HASTE * usual_rate(spec["optimizer"], batch)
        return result(score=9.0 if math.isclose(spec["learning_rate"], usual) else 1.0)

    one = searcher(tmp_path, search={"trials": 20})
    search(one, judge)
    used = [t for t in one.optuna_study.get_trials() if "prior" in t.user_attrs]
    assert 1 <= len(used) <= 3


def test_priors_can_be_switched_off(tmp_path: Path) -> None:
    one = searcher(tmp_path, search={"trials": 10, "priors": False})
    search(one, lambda _: result())
    assert not [t for t in one.optuna_study.get_trials() if "prior" in t.user_attrs]


def test_priors_stay_inside_the_space() -> None:
    narrow = {"optimizer": ["adam"], "learning_rate": {"low": 0.01, "high": 0.02, "log": True}}
    _, space = build_study(STUDY | {"space": narrow}, "test")
    assert [values["learning_rate"] for values in priors(space, {})] == [0.01]


def test_encode_names_parameters_as_the_sampler_does(tmp_path: Path) -> None:
    one = searcher(tmp_path)
    one.suggest("a")
    asked = one.optuna_study.get_trials()[-1].params
    known = priors(one._proposals._space, {})[0]
    assert set(encode(one._proposals._space, {}, known)) == set(asked)


def test_regions_that_fail_are_left(tmp_path: Path) -> None:
    """Memory ends at 128 samples, adam diverges from 0.01 up: under a tenth fails after 20."""

    def judge(spec: dict[str, Any]) -> dict[str, Any]:
        if spec["batch_size_per_worker"] >= 128:
            return result(failure="oom", stop=None)
        if spec["optimizer"] == "adam" and spec["learning_rate"] >= 0.01:
            return result(failure="nan", stop=None)
        return result(score=abs(math.log(spec["learning_rate"])))

    late: list[str] = []
    for seed in range(5):
        folder = tmp_path / str(seed)
        folder.mkdir()
        specs = search(searcher(folder, search={"trials": 60, "seed": seed}), judge)
        outcomes = [judge(spec)["rest"].content["failure"] for spec in specs]
        late += [outcome for outcome in outcomes[20:] if outcome]
    assert len(late) < 0.1 * 5 * 40, late


def test_an_exhausted_space_ends_the_search(tmp_path: Path) -> None:
    space = {"num_workers": [1, 2], "optimizer": ["adam", "lars"]}
    one = searcher(tmp_path, space=space, search={"trials": 8})
    specs = search(one, lambda _: result())
    assert len({(s["num_workers"], s["optimizer"]) for s in specs}) == len(specs) == 4
    assert searcher(tmp_path, space=space, search={"trials": 9}).suggest("again") == "FINISHED"


def test_a_space_taken_apart_is_exhausted_when_every_split_was_run(tmp_path: Path) -> None:
    space = {"num_workers": [1, 2], "batch_size_per_worker": [32, 64]}
    one = factored(tmp_path, space=space, search={"trials": 20})
    specs = []
    while isinstance(config := one.suggest("now"), dict):
        specs.append((config["spec"]["num_workers"], config["spec"]["batch_size_per_worker"]))
        end(one, "now", trained(config["spec"]))
    assert sorted(specs) == [(1, 32), (1, 64), (2, 32), (2, 64)]


def test_the_last_of_a_large_list_is_found_without_hundreds_of_draws(tmp_path: Path) -> None:
    rates = [1e-4 * 1.1**number for number in range(60)]
    space = {"learning_rate": rates}
    one = searcher(tmp_path, space=space, search={"trials": 100, "sampler": "random"})
    specs = search(one, lambda _: result())
    assert sorted(spec["learning_rate"] for spec in specs) == pytest.approx(rates)
    redrawn = [t for t in one.optuna_study.get_trials() if t.user_attrs.get(NOT_RUN)]
    assert len(redrawn) <= 24 * 60


def test_a_configuration_known_to_fail_is_never_drawn(tmp_path: Path) -> None:
    """Where nothing else is left, the search ends."""
    space = {"batch_size_per_worker": [16, 32, 64, 128], "optimizer": ["adam", "lars"]}
    one = searcher(tmp_path, space=space, search={"trials": 50})

    def judge(spec: dict[str, Any]) -> dict[str, Any]:
        if spec["batch_size_per_worker"] >= 32:
            return result(failure="oom", stop=None)
        return result()

    specs = search(one, judge)
    for optimizer in ("adam", "lars"):
        failed = [
            spec["batch_size_per_worker"]
            for spec in specs
            if spec["optimizer"] == optimizer and spec["batch_size_per_worker"] >= 32
        ]
        assert failed == sorted(set(failed), reverse=True), "never as large as one that failed"
    assert [s["batch_size_per_worker"] for s in specs].count(16) == 2


def test_a_space_of_rates_that_all_diverge_ends_the_search(tmp_path: Path) -> None:
    space = {"learning_rate": {"low": 0.1, "high": 1.0, "log": True}}
    one = searcher(tmp_path, space=space, search={"trials": 50, "priors": False})
    first = one.suggest("a")
    assert isinstance(first, dict)
    first["spec"]["learning_rate"] = 0.1  # as if the lowest had been drawn
    one._open["a"].set_user_attr("spec", first["spec"])
    end(one, "a", result(failure="nan", stop=None))
    assert one.suggest("b") == "FINISHED"


@pytest.mark.parametrize("failure", ["timeout", "worker_lost"])
def test_the_machine_s_fault_is_not_told_as_a_bad_configuration(
    failure: str, tmp_path: Path
) -> None:
    one = searcher(tmp_path)
    one.suggest("a")
    end(one, "a", result(failure=failure, stop=None))
    (trial,) = one.optuna_study.get_trials()
    assert (trial.state.name, trial.values) == ("FAIL", None)


def test_a_new_session_knows_the_failures_of_the_one_before(tmp_path: Path) -> None:
    one = searcher(tmp_path)
    config = one.suggest("a")
    assert isinstance(config, dict)
    end(one, "a", result(failure="oom", stop=None))
    again = searcher(tmp_path)
    assert again._proposals._failures.forbid(config["spec"])
    assert again.num_finished == 1


def record(trial: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """What the records hold of a trial that ended."""
    ended = {"state": "complete", "stop": "target", "failure": None, "score": 0.5}
    ended |= {"time_to_target_s": 2.0}
    return {trial: ended | {"ledger": {"train": 2.0}, "spec": {}, "samples": 100} | changes}


def test_a_trial_that_was_running_is_proposed_again_under_its_name(tmp_path: Path) -> None:
    killed = searcher(tmp_path, search={"trials": 2})
    first, second = killed.suggest("a"), killed.suggest("b")
    again = searcher(tmp_path, search={"trials": 2})
    assert again.num_finished == 0
    assert [again.suggest("a"), again.suggest("b")] == [first, second]
    assert again.suggest("c") == "FINISHED"


def run_some(folder: Path, count: int) -> dict[str, dict[str, Any]]:
    """Run trials of which some are stopped, fail or lose their workers; return their records."""
    one = searcher(folder, search={"trials": 12})
    kinds: list[dict[str, Any]] = [
        {},
        {"state": "stopped", "stop": "cap"},
        {"state": "failed", "stop": None, "failure": "nan"},
        {"state": "failed", "stop": None, "failure": "worker_lost"},
    ]
    records: dict[str, dict[str, Any]] = {}
    for number in range(count):
        config = one.suggest(str(number))
        assert isinstance(config, dict)
        changes = kinds[number % len(kinds)] | {"spec": config["spec"]}
        records |= record(config["trial"], **changes)
        told = records[config["trial"]]
        stop = told["stop"] if told["state"] == "complete" else None
        found = result(stop=stop, failure=told["failure"], score=0.5, train_s=2.0)
        end(one, str(number), found)
    return records


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-25],
        lambda content: content[: len(content) // 2],
        lambda content: content[:200] + b"#garbage#" + content[210:],
        lambda content: b"",
        lambda content: b"[1, 2]\n" + content,
    ],
    ids=["torn", "half", "damaged", "empty", "another shape"],
)
def test_a_damaged_journal_is_mended_from_the_records(damage: Any, tmp_path: Path) -> None:
    records = run_some(tmp_path, 8)
    before = searcher(tmp_path, search={"trials": 12})
    known = {t.user_attrs["trial"]: (t.state, t.values) for t in real_trials(before.optuna_study)}
    journal = tmp_path / "optuna.log"
    journal.write_bytes(damage(journal.read_bytes()))
    study, space = build_study(STUDY | {"search": {"trials": 12}}, "test")
    again = StudySearcher(study, space, tmp_path, Deadline(None), records)
    mended = {t.user_attrs["trial"]: (t.state, t.values) for t in real_trials(again.optuna_study)}
    assert mended == known
    assert again.num_finished == 8
    names = [again.suggest(str(number)) for number in range(4)]
    assert [name["trial"] for name in names if isinstance(name, dict)] == [
        f"{number:04d}" for number in range(8, 12)
    ]


def test_a_lock_that_a_killed_driver_left_does_not_cost_half_a_minute(tmp_path: Path) -> None:
    run_some(tmp_path, 1)
    (tmp_path / "optuna.log.lock").symlink_to(tmp_path / "optuna.log")
    began = time.perf_counter()
    assert searcher(tmp_path, search={"trials": 12}).num_finished == 1
    assert time.perf_counter() - began < 5


def test_a_trial_that_was_recorded_and_not_told_is_told(tmp_path: Path) -> None:
    killed = searcher(tmp_path, search={"trials": 2})
    killed.suggest("a")
    second = killed.suggest("b")
    control = Deadline(None, began=time.perf_counter())
    study, space = build_study(STUDY | {"search": {"trials": 2}}, "test")
    again = StudySearcher(study, space, tmp_path, control, record("0000"))
    assert again.num_finished == 1
    assert again.optuna_study.best_value == 0.5
    assert again.suggest("a") == second
    assert again.suggest("b") == "FINISHED"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"state": "stopped", "stop": "cap"}, "PRUNED"),
        ({"state": "failed", "stop": None, "failure": "worker_lost"}, "FAIL"),
        ({"state": "failed", "stop": None, "failure": "oom"}, "COMPLETE"),
    ],
)
def test_records_are_told_as_the_session_would_have(
    changes: dict[str, Any], state: str, tmp_path: Path
) -> None:
    searcher(tmp_path).suggest("a")
    control = Deadline(None, began=time.perf_counter())
    study, space = build_study(STUDY, "test")
    again = StudySearcher(study, space, tmp_path, control, record("0000", **changes))
    assert [t.state.name for t in again.optuna_study.get_trials()] == [state]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "nsga2", "random", "qmc"])
def test_every_sampler_finds_its_way_and_continues_elsewhere(sampler: str, tmp_path: Path) -> None:
    if sampler == "gp":
        pytest.importorskip("torch")

    def judge(spec: dict[str, Any]) -> dict[str, Any]:
        return result(score=abs(math.log(spec["learning_rate"] / 3e-3)))

    settings = {"seed": 1, "sampler": sampler, "priors": False}
    first = search(searcher(tmp_path, search=settings | {"trials": 25}), judge)
    again = search(searcher(tmp_path, search=settings | {"trials": 30}), judge)
    assert (len(first), len(again)) == (25, 5)
    rates = [spec["learning_rate"] for spec in first + again]
    assert len(set(rates)) > 20
    assert not set(rates[:25]) & set(rates[25:]) or sampler in ("cmaes", "nsga2")
    best = min(judge(spec)["score"] for spec in first + again)
    assert best < 0.7


def factored(folder: Path, recorded: Any = None, **changes: Any) -> StudySearcher:
    study, space = build_study(STUDY | changes, "test")
    factors = factorise(study, space, equal_frameworks=True)
    assert isinstance(factors, Factors)
    control = Deadline(None, began=time.perf_counter())
    return StudySearcher(study, space, folder, control, recorded, Placer(factors))


def trained(spec: dict[str, Any]) -> dict[str, Any]:
    """A result after 10,000 samples: 0.1 ms a sample and worker, 2 ms more with two workers."""
    workers, batch = spec["num_workers"], spec["batch_size_per_worker"]
    seconds = 10_000 / (workers * batch) * (1e-4 * batch + 2e-3 * (workers - 1))
    evaluation = {"samples": 10_000, "train_s": seconds, "time_to_target_s": seconds}
    return result(score=math.log(seconds), train_s=seconds, evaluation=evaluation)


def test_optuna_is_told_the_seconds_of_the_fastest_split(tmp_path: Path) -> None:
    """Whatever split a trial ran on; the first one, too, that ended before others were known."""
    space = STUDY["space"] | {"batch_size_per_worker": [32, 64]}
    one = factored(tmp_path, space=space, search={"trials": 12})
    splits = {}
    while isinstance(config := one.suggest("now"), dict):
        name, spec = config["trial"], config["spec"]
        found = trained(spec)
        end(one, "now", found)
        splits[name] = spec["num_workers"], spec["num_workers"] * spec["batch_size_per_worker"]
    told = {t.user_attrs["trial"]: t.value for t in real_trials(one.optuna_study)}
    assert {(1, 64), (2, 64)} <= set(splits.values()), "a batch of 64 ran on both splits"
    fastest = trained({"num_workers": 2, "batch_size_per_worker": 32})["rest"].content["score"]
    for name, (_, batch) in splits.items():
        if batch == 64:
            assert told[name] == pytest.approx(fastest, abs=0.01), name


def test_an_interrupted_trial_runs_again_on_its_split(tmp_path: Path) -> None:
    killed = factored(tmp_path, search={"trials": 3})
    before = [killed.suggest(str(number)) for number in range(3)]
    again = factored(tmp_path, search={"trials": 3})
    assert [again.suggest(str(number)) for number in range(3)] == before


def test_a_proposal_whose_every_split_fails_is_redrawn(tmp_path: Path) -> None:
    one = factored(tmp_path, search={"trials": 30})

    def judge(spec: dict[str, Any]) -> dict[str, Any]:
        if spec["batch_size_per_worker"] >= 64:
            return result(failure="oom", stop=None)
        return trained(spec)

    specs = search(one, judge)
    for optimizer in ("adam", "lars"):
        own = [s["batch_size_per_worker"] for s in specs if s["optimizer"] == optimizer]
        failed = [batch for batch in own if batch >= 64]
        assert failed == sorted(set(failed), reverse=True), "never as large as one that failed"
    assert sum(spec["batch_size_per_worker"] < 64 for spec in specs) >= 22


def test_nsga2_is_told_seconds_and_worker_seconds(tmp_path: Path) -> None:
    one = factored(tmp_path, search={"trials": 12, "sampler": "nsga2", "priors": False})
    while isinstance(config := one.suggest("now"), dict):
        end(one, "now", trained(config["spec"]))
    one.tell_all()
    for trial in real_trials(one.optuna_study):
        spec = trial.user_attrs["spec"]
        batch = spec["num_workers"] * spec["batch_size_per_worker"]
        ways = [
            {"num_workers": workers, "batch_size_per_worker": batch // workers}
            for workers in (1, 2)
            if 16 <= batch // workers <= 512
        ]
        times = [trained(way)["rest"].content["train_s"] for way in ways]
        costs = [time * way["num_workers"] for way, time in zip(ways, times, strict=True)]
        wanted = [math.log(min(times)), math.log(min(costs))]
        assert trial.values == pytest.approx(wanted, abs=0.15), (trial.number, spec)
    assert one.optuna_study.best_trials


def test_the_totals_of_an_interrupted_run_are_not_taken_from_its_rerun(tmp_path: Path) -> None:
    """Else 200 steps in 12 s were learnt as 99 in 1.9 s, where the rerun had another split."""
    factored(tmp_path, search={"trials": 3}).suggest("a")
    spec = {"framework": "torch", "num_workers": 1, "batch_size_per_worker": 64}
    spec |= {"optimizer": "adam", "accumulate": 1}
    ended = record("0000", stop="interrupted", state="stopped", spec=spec, samples=6_464)
    ended["0000"]["ledger"]["train"] = 10.1
    again = factored(tmp_path, ended, search={"trials": 3})
    speed = again._speed
    assert speed is not None
    wide = spec | {"num_workers": 2, "batch_size_per_worker": 32}
    speed.observe("0000", wide, samples=12_800, train_s=12.0)
    (seconds,) = [
        seconds / steps
        for setup, (steps, seconds) in speed._model._totals.items()
        if setup.num_workers == 2
    ]
    assert seconds == pytest.approx(12.0 / 200)
