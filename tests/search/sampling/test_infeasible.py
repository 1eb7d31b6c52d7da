"""Failures say which later configurations would fail alike."""

from typing import Any

from raybench.core.spec import RunSpec
from raybench.search.sampling.infeasible import Infeasible


def spec(**changes: Any) -> RunSpec:
    return RunSpec(**({"batch_size_per_worker": 128, "learning_rate": 0.1} | changes))


def test_out_of_memory_forbids_larger_batches_of_the_same_optimizer() -> None:
    failures = Infeasible()
    failures.add("oom", spec())
    assert not failures.is_feasible(spec())
    assert not failures.is_feasible(spec(batch_size_per_worker=256, learning_rate=1e-4))
    assert failures.is_feasible(spec(batch_size_per_worker=64))
    assert failures.is_feasible(spec(optimizer="sgd"))
    assert failures.is_feasible(spec(framework="tensorflow"))


def test_more_workers_do_not_need_more_memory_each() -> None:
    failures = Infeasible()
    failures.add("oom", spec())
    assert failures.is_feasible(spec(batch_size_per_worker=64, num_workers=4))


def test_nan_forbids_higher_rates_and_what_the_batch_makes_equal() -> None:
    failures = Infeasible()
    failures.add("nan", spec())
    assert not failures.is_feasible(spec(learning_rate=0.2))
    assert not failures.is_feasible(spec(batch_size_per_worker=32))
    assert failures.is_feasible(spec(learning_rate=0.05))
    assert failures.is_feasible(spec(batch_size_per_worker=512, learning_rate=0.19))
    assert not failures.is_feasible(
        spec(batch_size_per_worker=512, learning_rate=0.21)
    )  # sqrt: 0.2
    assert failures.is_feasible(spec(optimizer="lars"))


def test_a_lost_worker_says_nothing_about_the_configuration() -> None:
    failures = Infeasible()
    for failure in ("worker_lost", "timeout", "error"):
        failures.add(failure, spec())
    assert failures.is_feasible(spec())
