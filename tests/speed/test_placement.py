"""Where trials run: first what was not measured, then the fastest split that is efficient."""

from typing import Any

import pytest

from raybench.speed.factorisation import Factors, Split, split_of
from raybench.speed.placement import Placer

SPLITS = [
    Split(framework, workers, batch)
    for framework in ("torch", "tensorflow")
    for workers in (1, 2, 4)
    for batch in (16, 32, 64, 128)
]


def spec(split: Split, optimizer: str = "adam") -> dict[str, Any]:
    return {"optimizer": optimizer, "accumulate": 1, **split.values()}


def step_s(split: Split) -> float:
    """One worker takes 1 + n / 16 ms; each more 0.1 ms; TensorFlow twice that."""
    slow = 2.0 if split.framework == "tensorflow" else 1.0
    compute = 1 + split.batch_size_per_worker / 16
    return slow * (compute + 0.1 * (split.num_workers - 1)) / 1000


def measure(speed: Placer, trial: str, split: Split, steps: int = 50) -> None:
    samples = steps * split.num_workers * split.batch_size_per_worker
    speed.observe(trial, spec(split), samples=samples, train_s=steps * step_s(split))


def measured() -> Placer:
    speed = Placer(Factors({}, SPLITS))
    for number, split in enumerate(SPLITS):
        measure(speed, str(number), split)
    return speed


def options(batch: int, speed: Placer) -> list[Split]:
    return speed.factors.splits({"global_batch_size": batch})


def test_the_first_trials_measure_every_group_and_two_batches_per_framework() -> None:
    speed = Placer(Factors({}, SPLITS))
    chosen = []
    for number in range(7):
        split = speed.choose(str(number), "adam", options(64, speed))
        measure(speed, str(number), split)
        chosen.append(split)
    # More workers are worth a probe while they may be faster than what is known.
    assert {split.group for split in chosen[:2]} == {("tensorflow", 1), ("torch", 1)}
    assert {("torch", 2), ("torch", 4)} <= {split.group for split in chosen}
    assert chosen[-1] == Split("torch", 4, 16)
    assert speed.is_known(spec(Split("torch", 1, 64)))


def test_more_workers_are_not_tried_where_fewer_tell_that_they_lose() -> None:
    """Two workers take three times as long: four, with less to do each, cannot win either."""
    speed = Placer(Factors({}, [split for split in SPLITS if split.framework == "torch"]))
    chosen = []
    for number in range(4):
        split = speed.choose(str(number), "adam", options(64, speed))
        samples = 50 * split.num_workers * split.batch_size_per_worker
        seconds = 50 * (step_s(split) + (10e-3 if split.num_workers > 1 else 0.0))
        speed.observe(str(number), spec(split), samples=samples, train_s=seconds)
        chosen.append(split.num_workers)
    assert chosen == [1, 2, 1, 1]


def test_trials_side_by_side_do_not_measure_the_same() -> None:
    speed = Placer(Factors({}, SPLITS))
    chosen = [speed.choose(str(n), "adam", options(64, speed)) for n in range(4)]
    assert [split.framework for split in chosen[:2]] == ["tensorflow", "torch"]
    # Until these are measured, others run where a worker does most.
    assert {split.num_workers for split in chosen} == {1}


def test_what_failed_is_measured_again() -> None:
    speed = Placer(Factors({}, SPLITS))
    first = speed.choose("a", "adam", options(64, speed))
    assert speed.choose("b", "adam", options(64, speed)).group != first.group
    assert speed.choose("d", "adam", options(64, speed)).group != ("tensorflow", 2)
    speed.forget("a")
    assert speed.choose("c", "adam", options(64, speed)).group == first.group


def test_the_fastest_split_is_taken_while_it_is_efficient() -> None:
    speed = measured()
    assert speed.choose("a", "adam", options(64, speed)) == Split("torch", 4, 16)
    slow = Placer(Factors({}, SPLITS))
    for number, split in enumerate(SPLITS):
        # Communication eats nearly all of what four workers gain.
        seconds = step_s(split) * (1.7 if split.num_workers == 4 else 1.0)
        samples = 50 * split.num_workers * split.batch_size_per_worker
        slow.observe(str(number), spec(split), samples=samples, train_s=50 * seconds)
    assert slow.choose("a", "adam", options(64, slow)).num_workers == 2


def test_a_run_is_converted_to_every_split_of_its_batch() -> None:
    speed = measured()
    own = Split("torch", 1, 64)
    ratios = speed.ratios(spec(own))
    assert set(ratios) == set(options(64, speed))
    assert ratios[own] == 1.0
    for split, ratio in ratios.items():
        assert ratio == pytest.approx(step_s(split) / step_s(own), rel=0.05), split
    assert speed.to_fastest(spec(own)) == min(ratios.values())
    assert speed.to_cheapest(spec(own)) == pytest.approx(1.0)
    wide = spec(Split("tensorflow", 4, 16))
    assert speed.to_cheapest(wide) == pytest.approx(5e-3 / (4 * step_s(split_of(wide))), rel=0.05)


def test_until_its_group_is_measured_a_run_stands_for_itself() -> None:
    speed = Placer(Factors({}, SPLITS))
    assert speed.ratios(spec(SPLITS[0])) == {}
    assert (speed.to_fastest(spec(SPLITS[0])), speed.to_cheapest(spec(SPLITS[0]))) == (1.0, 1.0)
    assert not speed.is_known(spec(SPLITS[0]))
    assert measured().is_known(spec(SPLITS[0]))


def test_the_same_totals_count_once() -> None:
    speed = Placer(Factors({}, SPLITS))
    one, other = Split("torch", 1, 64), Split("torch", 2, 32)
    for _ in range(3):
        measure(speed, "a", one)
    measure(speed, "b", other)
    assert speed.ratios(spec(one))[other] == pytest.approx(step_s(other) / step_s(one), rel=1e-3)
