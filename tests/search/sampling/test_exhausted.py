"""Spaces whose configurations have all run, and configurations that are known to fail."""

from dataclasses import replace

import pytest

from raybench.search.sampling.optuna_study import NOT_RUN
from raybench.spec.run import RunSpec, short
from raybench.stats.record import RunRecord
from tests.search.made_up import (
    STUDY,
    ask,
    journal_of,
    make_search,
    record,
    run_all,
    trained,
)


@pytest.mark.parametrize(
    ("space", "number"),
    [
        ({"accumulate": {"low": 1, "high": 9}, "optimizer": ["adam", "sgd", "lars"]}, 27),
        ({"augment": [[], ["flip"], [{"random_crop": {"padding": 4}}]], "nesterov": [True]}, 3),
        ({"step_at": [[0.5, 0.75], [0.3]], "optimizer": ["adam", "sgd"]}, 4),
    ],
)
def test_finite_spaces_are_tried_completely(space, number, tmp_path):
    content = STUDY | {"space": space, "search": {"trials": 60, "priors": False}}
    search = make_search(tmp_path, content)
    ended = run_all(search)
    tried = {tuple(short(getattr(record.spec, key)) for key in space) for record in ended}
    assert len(tried) == len(ended) == search.num_trials == number
    assert make_search(tmp_path, content, runs=ended).suggest() is None


def test_a_factorized_space_is_exhausted_after_every_placement(tmp_path):
    space = {"num_workers": [1, 2], "batch_size_per_worker": [32, 64]}
    content = STUDY | {"space": space, "search": {"trials": 20}}
    ended = run_all(make_search(tmp_path, content, apart=True), trained)
    placements = [(record.spec.num_workers, record.spec.batch_size_per_worker) for record in ended]
    assert sorted(placements) == [(1, 32), (1, 64), (2, 32), (2, 64)]


def test_the_last_of_a_large_list_is_found_without_hundreds_of_draws(tmp_path):
    rates = [1e-4 * 1.1**number for number in range(30)]
    settings = {"trials": 100, "sampler": "random"}
    search = make_search(tmp_path, STUDY | {"space": {"learning_rate": rates}, "search": settings})
    ended = run_all(search)
    assert sorted(record.spec.learning_rate for record in ended) == pytest.approx(rates)
    redrawn = [t for t in journal_of(search).get_trials() if t.user_attrs.get(NOT_RUN)]
    assert len(redrawn) <= 24 * len(rates)


FEW = {"batch_size_per_worker": [16, 32, 64, 128], "optimizer": ["adam", "lars"]}


@pytest.mark.parametrize(
    ("content", "least", "fitting"),
    [({"space": FEW}, 32, 2), ({"search": {"trials": 15, "sampler": "tpe"}}, 64, 10)],
)
def test_a_configuration_known_to_fail_is_never_drawn(content, least, fitting, tmp_path):
    """Neither in a finite space, nor on any placement of a factorized one."""

    def judge(name: str, spec: RunSpec) -> RunRecord:
        if spec.batch_size_per_worker >= least:
            return record(name, spec, failure="oom")
        return trained(name, spec)

    ended = run_all(make_search(tmp_path, STUDY | content, apart="search" in content), judge)
    assert sum(run.failure is None for run in ended) >= fitting
    for optimizer in ("adam", "lars"):
        failures = [run for run in ended if run.failure and run.spec.optimizer == optimizer]
        failed = [run.spec.batch_size_per_worker for run in failures]
        assert failed == sorted(set(failed), reverse=True), "each is smaller than the one before"


def test_a_space_of_rates_that_all_diverge_ends_the_search(tmp_path):
    space = {"learning_rate": {"low": 0.1, "high": 1.0, "log": True}}
    content = STUDY | {"space": space, "search": {"trials": 50, "priors": False}}
    search = make_search(tmp_path, content)
    proposal = ask(search)
    failed = record(*proposal, failure="nan")
    # As if the lowest learning rate had been drawn.
    search.on_end(replace(failed, spec=failed.spec.model_copy(update={"learning_rate": 0.1})))
    assert search.suggest() is None
