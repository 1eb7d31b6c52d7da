"""Probes as run specs, and seconds of a step from their evaluations."""

import math
from itertools import islice

import numpy as np
import pytest
from made_up_probes import spec_of

from raybench.data.dataset import Dataset, Split
from raybench.scaling.shares import (
    FEWEST_STEPS,
    INTERVALS,
    MOST_STEPS,
    SYNTHETIC_BYTES,
    Probes,
    probe_spec,
    rounds,
    step_seconds,
    steps_for,
    synthetic_like,
)
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation


def dataset_of(number: int, shape: tuple[int, ...] = (4, 4, 1)) -> Dataset:
    split = Split(np.zeros((number, *shape), np.uint8), np.zeros(number, np.int64))
    return Dataset("made up", 3, train=split, validation=split, test=split)


def curve_of(seconds: list[float], samples: list[int]) -> list[Evaluation]:
    return [
        Evaluation(
            index=index,
            epoch=0.0,
            samples=seen,
            train_s=trained,
            train_loss=0.0,
            value=0.0,
            learning_rate=0.1,
            samples_per_s=0.0,
        )
        for index, (trained, seen) in enumerate(zip(seconds, samples, strict=True))
    ]


def test_the_first_interval_is_left_out_and_a_stall_is_borne() -> None:
    curve = curve_of([9.0, 10.0, 11.0, 31.0], [100, 200, 300, 400])
    assert step_seconds(curve, 10) == pytest.approx(0.1)


def test_data_that_come_slowly_every_tenth_step_are_no_stall() -> None:
    """A median over steps would not see them."""
    every = np.tile([0.01] * 9 + [0.11], 4)
    ends = np.cumsum(every)[9::10]
    curve = curve_of(list(ends), [10, 20, 30, 40])
    assert step_seconds(curve, 1) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.01, 50), (10.0, FEWEST_STEPS), (1e-6, MOST_STEPS)]
)
def test_steps_of_about_so_many_seconds(step_s: float, steps: int) -> None:
    assert steps_for(0.5, step_s) == steps


@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 100_000])
@pytest.mark.parametrize("steps", [2, 33])
def test_a_probe_takes_whole_steps_alone_however_few_samples_there_are(
    rows: int, steps: int
) -> None:
    spec, dataset = spec_of(accumulate=2), dataset_of(rows)
    for probe in Probes.of(spec).names:
        found = probe_spec(spec, probe, dataset, steps=steps)
        own = rows if probe.reads else found.dataset.num_samples
        epoch = own * found.dataset.repeat
        samples = math.ceil(found.epochs * epoch)
        assert found.eval_every_samples == steps * found.global_batch_size
        assert samples == INTERVALS * found.eval_every_samples
        assert epoch >= samples + found.global_batch_size, "no step at the end of an epoch"
        assert RunSpec.model_validate(found.document()) == found


def test_a_limit_is_of_the_samples_that_were_loaded() -> None:
    spec = spec_of(dataset={"name": "mnist", "limit": 100, "repeat": 3})
    found = probe_spec(spec, Probes.of(spec).as_it_is, dataset_of(100), steps=10)
    assert found.dataset.limit == 100
    assert found.dataset.repeat % 3 == 0


def test_synthetic_samples_fit_the_memory_and_have_the_shape() -> None:
    large = dataset_of(2000, (600, 600, 3))
    found = synthetic_like(large, 10**9)
    assert found.shape == [600, 600, 3]
    assert found.num_classes == 3
    assert found.num_samples * 600 * 600 * 3 <= SYNTHETIC_BYTES
    assert synthetic_like(dataset_of(50), 10**9).num_samples == 50


def test_vectors_are_no_images() -> None:
    assert synthetic_like(dataset_of(50, (8,)), 50).shape == [8]


def test_orders_are_permutations_and_repeat_with_the_seed() -> None:
    probes = Probes.of(spec_of())
    orders = list(islice(rounds(probes, seed=3), 20))
    assert all(sorted(order) == sorted(probes.names) for order in orders)
    assert len({tuple(order) for order in orders}) > 10
    assert orders == list(islice(rounds(probes, seed=3), 20))
