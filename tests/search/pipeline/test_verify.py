"""Placements that were not run and are worth a placement check."""

from typing import Any

from raybench.search.factorisation import speed_values
from raybench.search.verify import PlacementOption, choose_checks
from raybench.spec.run import RunSpec
from raybench.stats.record import Prediction


def way(
    trial: str,
    seconds: float,
    framework: Any = "torch",
    workers: int = 1,
    *,
    measured: bool = False,
    **changes: Any,
) -> PlacementOption:
    batch = {"num_workers": workers, "batch_size_per_worker": 64 // workers}
    spec = RunSpec(framework=framework, **batch, **changes)
    prediction = Prediction(trial=trial, time_to_target_s=seconds, **speed_values(spec.placement))
    return PlacementOption(prediction, spec, measured)


def names(*every: PlacementOption) -> list[str]:
    ordered = sorted(every, key=lambda option: option.prediction.time_to_target_s)
    return [check.name for check in choose_checks(ordered)]


def test_the_fastest_placement_of_each_of_the_fastest_is_run() -> None:
    every = [way(trial, 2.0 + number) for number, trial in enumerate("abcd")]
    every += [way(trial, 1.5 + number, workers=2) for number, trial in enumerate("abcd")]
    # Only the three fastest trials count; the first trial on one worker is the cheapest.
    assert names(*every) == ["a.torch2", "b.torch2", "c.torch2", "a.torch1"]


def test_the_cheapest_is_run_though_it_is_slow() -> None:
    fast, slow = way("a", 1.0, workers=4, measured=True), way("a", 3.0)
    assert names(fast, slow) == ["a.torch1"]


def test_every_model_of_gpu_gets_its_fastest_and_its_cheapest() -> None:
    """Prices of GPU models differ, so worker-seconds of two models cannot be compared."""
    fast = [
        way("a", 1.0 + n, workers=4 - n, gpus_per_worker=1, accelerator_type="H100") for n in (0, 3)
    ]
    slow = [
        way("a", 5.0 + n, workers=4 - n, gpus_per_worker=1, accelerator_type="A100") for n in (0, 3)
    ]
    expected = ["a.torch4.H100", "a.torch1.H100", "a.torch1.A100", "a.torch4.A100"]
    assert sorted(names(*fast, *slow)) == sorted(expected)


def test_every_framework_is_checked() -> None:
    fast = way("a", 1.0, measured=True)
    slow = [way("a", 5.0, "tensorflow"), way("a", 4.0, "tensorflow", 2)]
    assert names(fast, *slow) == ["a.tf2"]
