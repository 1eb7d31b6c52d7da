"""Sampler grid: order of its combinations, sessions, refused spaces; default learning rates."""

import math
from pathlib import Path
from typing import Any

import pytest

from raybench.search.factorisation import Factors, factorise
from raybench.search.sampling.default_rates import (
    HASTE,
    check_grid,
    default_rate,
    grid,
    initial_configurations,
    num_trials,
)
from raybench.search.search import Search
from raybench.spec.errors import ErrorCode
from raybench.spec.run import RunSpec
from raybench.spec.study import DEFAULT_TRIALS, build_study
from raybench.stats.record import RunRecord
from tests.refusals import refused
from tests.search.made_up import STUDY, ask, make_search, record, run_all

ADAM, LARS = [1e-4, 1e-3, 1e-2], [0.1, 1.0]
GRID: dict[str, Any] = {
    "objective": {"target": 0.95, "max_train_seconds": 10},
    "search": {"sampler": "grid", "seed": 0},
    "space": {
        "num_workers": [1, 2],
        "batch_size_per_worker": [32, 64],
        "optimizer": ["adam", "lars"],
        "learning_rate": [
            {"when": {"optimizer": "adam"}, "values": ADAM},
            {"when": {"optimizer": "lars"}, "values": LARS},
        ],
    },
}


def search_in(folder: Path, *, apart: bool, **search: Any) -> Search:
    return make_search(folder, GRID | {"search": GRID["search"] | search}, apart=apart)


def missed(name: str, spec: RunSpec) -> RunRecord:
    return record(name, spec, stop="epochs", score=3.0)


def run(search: Search, number: int = 1000) -> list[RunSpec]:
    return [ended.spec for ended in run_all(search, missed, most=number)]


@pytest.mark.parametrize("apart", [False, True])
def test_trials_limit_a_grid_to_the_first_of_its_order_and_a_second_session_runs_the_rest(
    tmp_path, *, apart
):
    search = search_in(tmp_path / "few", apart=apart, trials=6)
    every = run(search_in(tmp_path / "all", apart=apart))
    keys = ["global_batch_size", "optimizer", "learning_rate", *(["num_workers"] * (not apart))]
    combinations = {tuple(getattr(spec, key) for key in keys) for spec in every}
    assert len(every) == len(combinations) == (15 if apart else 20), "each once"
    ended = run_all(search, missed)
    assert [record.spec for record in ended] == every[:6]
    assert (search.num_trials, search.num_finished) == (6, 6)
    content = GRID | {"search": GRID["search"] | {"trials": 1000}}
    resumed = make_search(tmp_path / "few", content, apart=apart, runs=ended)
    assert resumed.num_trials == len(every)
    assert run(resumed) == every[6:]


def test_a_grid_that_is_too_large_is_refused_before_it_is_listed():
    keys = {f"model.k{number}": [0, 1] for number in range(60)}
    for trials in (None, 8):
        content = GRID | {"space": keys, "search": {"sampler": "grid", "trials": trials}}
        with refused(ErrorCode.INVALID_VALUE, f"{2**60:,}"):
            check_grid(*build_study(content, "test"))
    study, space = build_study(content | {"search": {"sampler": "random"}}, "test")
    check_grid(study, space)
    assert num_trials(study, space) == DEFAULT_TRIALS


def test_few_workers_and_default_rates_come_first_and_the_seed_orders_the_rest():
    study, space = build_study(GRID, "test")
    order = grid(study, space)
    assert num_trials(study, space) == len(order) == 20

    def place(values: dict[str, Any]) -> tuple[int, int]:
        workers, batch = values["num_workers"], values["batch_size_per_worker"]
        usual = HASTE * default_rate(values["optimizer"], workers * batch)
        return workers, int(abs(math.log(values["learning_rate"] / usual, 3.0)))

    places = [place(values) for values in order]
    assert places == sorted(places)
    factors = factorise(study, space, equal_frameworks=True)
    assert isinstance(factors, Factors)
    # Batches of 32 and 64 can run on one worker, 128 only on two.
    batches = [values["global_batch_size"] for values in grid(study, factors.sampled, factors)]
    assert set(batches[:10]) == {32, 64}
    assert set(batches[10:]) == {128}
    for change in ({"seed": 1}, {"priors": False}):
        other, _ = build_study(GRID | {"search": GRID["search"] | change}, "test")
        assert grid(other, space) != order


def test_a_grid_passes_over_any_number_of_infeasible_combinations(tmp_path):
    rates = [1e-4 * 1.01**number for number in range(501)]
    content = GRID | {"space": {"num_workers": [1, 2], "learning_rate": rates}}
    search = make_search(tmp_path, content, has_room=lambda spec: spec.num_workers == 2)
    assert ask(search)[1].num_workers == 2


RANGE = {"low": 1e-3, "high": 1e-1, "log": True}


@pytest.mark.parametrize("rate", [RANGE, [{"when": {"optimizer": ["adam", "lars"]}, **RANGE}]])
def test_a_range_in_a_grid_is_refused(rate):
    content = GRID | {"space": GRID["space"] | {"learning_rate": rate}}
    with refused(ErrorCode.CONFLICT, "space.learning_rate"):
        check_grid(*build_study(content, "test"))
    check_grid(*build_study(content | {"search": {"sampler": "tpe"}}, "test"))


@pytest.mark.parametrize(
    ("objective", "factor"), [({"target": 0.95}, HASTE), ({"kind": "best_at_budget"}, 1.0)]
)
def test_every_other_start_up_trial_has_its_optimizer_s_default_rate(tmp_path, objective, factor):
    content = STUDY | {"search": {"trials": 10, "sampler": "tpe"}, "objective": objective}

    def is_usual(spec: RunSpec) -> bool:
        usual = factor * default_rate(spec.optimizer, spec.global_batch_size)
        return spec.learning_rate == pytest.approx(usual)

    specs = run(make_search(tmp_path, content), 8)
    assert [is_usual(spec) for spec in specs] == [n % 2 == 0 for n in range(8)]
    assert {spec.optimizer for spec in specs[::2]} == {"adam", "lars"}


def test_priors_stay_inside_the_space():
    narrow = {"optimizer": ["adam"], "learning_rate": {"low": 0.01, "high": 0.02, "log": True}}
    _, space = build_study(STUDY | {"space": narrow}, "test")
    assert [values["learning_rate"] for values in initial_configurations(space, {})] == [0.01]
