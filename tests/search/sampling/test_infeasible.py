"""Failures say which later configurations would fail alike."""

from typing import Any

import pytest

from raybench.search.sampling.feedback import Infeasible
from raybench.spec.run import RunSpec


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


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("gradient_compression", "fp16"), ("momentum", 0.5), ("beta1", 0.5), ("beta2", 0.9)),
        *(("epsilon", 1e-3), ("weights", "cached"), ("frozen_epochs", "all"), ("ema_decay", 0.9)),
        *(("label_smoothing", 0.1), ("augment", [{"kind": "flip"}]), ("framework", "tensorflow")),
        *(("clip_norm", 1.0), ("warmup_samples", 512), ("weight_decay", 0.1)),
    ],
)
def test_nan_forbids_no_other_arm(key: str, value: Any) -> None:
    failures = Infeasible()
    failures.add("nan", spec())
    assert failures.is_feasible(spec(**{key: value}))


def test_nan_is_of_the_rate_after_scaling_and_of_any_placement() -> None:
    failures = Infeasible(equal_frameworks=True)
    failures.add("nan", spec(learning_rate_scaling="linear", num_workers=2))
    same = {"learning_rate_scaling": "linear", "batch_size_per_worker": 256, "cpus_per_worker": 4}
    assert failures.is_feasible(spec(**same))
    assert not failures.is_feasible(spec(**same, learning_rate=0.2, framework="tensorflow"))


def test_what_was_left_out_is_said() -> None:
    failures = Infeasible()
    assert failures.sentence(["momentum"], 0) is None
    for rate in (0.3, 0.2):
        failures.add("nan", spec(optimizer="sgd", momentum=0.9, learning_rate=rate))
    failures.add("oom", spec())
    assert failures.sentence(["momentum"], 7) == (
        "Drawn 7 times and not tried, because a run alike had failed: sgd momentum 0.9 at learning "
        "rate 0.2 and above with 128 samples a step (NaN); torch adam with 128 samples a worker "
        "and more (out of memory)."
    )


def test_a_lost_worker_says_nothing_about_the_configuration() -> None:
    failures = Infeasible()
    for failure in ("worker_lost", "timeout", "error"):
        failures.add(failure, spec())
    assert failures.is_feasible(spec())
