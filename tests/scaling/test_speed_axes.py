"""Variants of a spec that keep its learning curve, and the choice of the fastest by probes."""

from typing import Any

import numpy as np
import pytest

from raybench.scaling.speed_axes import (
    AXES,
    AxisProbes,
    Leeway,
    gains_sentence,
    variants_of,
)
from raybench.spec.run import ResourceRequest, RunSpec


def fits_two(request: ResourceRequest) -> bool:
    return request.num_workers <= 2


LEEWAY = {
    "equal_frameworks": True,
    "batch_statistics": False,
    "reads": True,
    "fits": fits_two,
}


def variants(axis: str, spec: RunSpec, **changes: Any) -> dict[str, RunSpec] | str:
    return variants_of(axis, spec, Leeway(**(LEEWAY | changes)))


@pytest.mark.parametrize(
    ("axis", "changes", "expected"),
    [
        ("micro-batch", {}, ["64x1", "32x2", "16x4", "8x8", "4x16"]),
        ("micro-batch", {"batch_size_per_worker": 6, "accumulate": 5}, ["6x5", "30x1", "15x2"]),
        ("workers", {}, ["1x64", "2x32"]),
        ("workers", {"num_workers": 2, "accumulate": 3}, ["2x64", "1x128"]),
        ("compile", {}, ["none", "default", "max-autotune"]),
        ("compile", {"framework": "tensorflow", "compile": "xla"}, ["xla", "none"]),
        ("prefetch", {"prefetch": 3, "cpus_per_worker": 2}, ["3", "0", "1", "2"]),
        ("framework", {"compile": "default"}, ["torch", "tensorflow"]),
    ],
)
def test_variants_begin_with_that_of_the_spec(
    axis: str, changes: dict[str, Any], expected: list[str]
) -> None:
    spec = RunSpec(**changes)
    by_name = variants(axis, spec)
    assert list(by_name) == expected
    assert isinstance(by_name, dict)
    assert {variant.global_batch_size for variant in by_name.values()} == {spec.global_batch_size}
    assert next(iter(by_name.values())) == spec


@pytest.mark.parametrize(
    ("axis", "changes", "leeway", "reason"),
    [
        ("micro-batch", {}, {"batch_statistics": True}, "batch normalization"),
        ("workers", {}, {"batch_statistics": True}, "batch normalization"),
        ("workers", {"learning_rate_scaling": "sqrt"}, {}, "learning_rate_scaling"),
        ("workers", {"batch_size_per_worker": 65}, {}, "no other"),
        ("prefetch", {}, {"reads": False}, "in memory"),
        ("framework", {}, {"equal_frameworks": False}, "network"),
        ("framework", {"optimizer": "torch:SGD"}, {}, "no other"),
    ],
)
def test_variants_that_change_the_learning_curve_are_not_measured(
    axis: str, changes: dict[str, Any], leeway: dict[str, Any], reason: str
) -> None:
    assert reason in str(variants(axis, RunSpec(**changes), **leeway))


def test_cuda_graphs_are_tried_on_gpus_and_not_with_several_passes() -> None:
    on_gpu = RunSpec(gpus_per_worker=1)
    assert list(variants("compile", on_gpu)) == [
        "none",
        "default",
        "reduce-overhead",
        "max-autotune",
    ]
    passes = on_gpu.model_copy(update={"accumulate": 2})
    assert list(variants("compile", passes)) == ["none", "default"]


def found_of(
    times: dict[str, list[float]], compile_s: dict[str, list[float]] | None = None
) -> AxisProbes:
    return AxisProbes(next(iter(times)), times, compile_s or {})


@pytest.mark.parametrize(
    ("times", "next_round", "chosen"),
    [
        ({"a": [], "b": []}, ["a", "b"], None),
        ({"a": [1.0], "b": [1.2], "c": [1.5]}, ["a", "b"], "a"),
        # One round never decides.
        ({"a": [9.0], "b": [1.0]}, ["a", "b"], "a"),
        ({"a": [9.0, 9.0], "b": [1.0, 1.0]}, ["b"], "b"),
        # One slow round of two may be caused by other processes.
        ({"a": [9.0, 1.0], "b": [1.0, 1.0]}, ["a", "b"], "a"),
        # Close variants are decided by Student's interval.
        ({"a": [1.05, 1.06, 1.05, 1.06], "b": [1.0, 1.0, 1.0, 1.01]}, ["a", "b"], "b"),
        ({"a": [1.2, 0.9, 1.1, 0.9], "b": [1.0, 1.0, 1.0, 1.0]}, ["a", "b"], "a"),
        # Only variants of the last round can be chosen.
        ({"a": [2.0, 2.0, 2.0], "b": [1.0, 1.0, 1.0], "c": [0.9]}, ["b"], "b"),
    ],
)
def test_a_variant_is_chosen_only_beyond_noise(
    times: dict[str, list[float]], next_round: list[str], chosen: str | None
) -> None:
    probes = found_of(times)
    assert probes.next_round() == next_round
    if chosen is not None:
        assert probes.chosen == chosen


@pytest.mark.parametrize(("variants", "noise"), [(2, 0.03), (9, 0.08)])
def test_equal_variants_are_replaced_in_at_most_5_percent_of_diagnoses(
    variants: int, noise: float
) -> None:
    rng, chosen = np.random.default_rng(0), 0
    for _ in range(150):
        probes = found_of({str(variant): [] for variant in range(variants)})
        for _ in range(4):
            for variant in probes.next_round():
                probes.step_s[variant].append(float(np.exp(noise * rng.standard_normal())))
        chosen += probes.chosen != "0"
    assert chosen <= 4, f"{150 * 0.05 / len(AXES)} of 150 are expected at most, on one axis"


def test_the_sentence_has_the_gain_of_each_axis_and_the_break_even_of_compilation() -> None:
    same = found_of({"torch": [1.0] * 3, "tensorflow": [2.0] * 3})
    assert "torch" not in gains_sentence({"framework": same})
    axes = {
        "framework": same,
        "micro-batch": found_of({"64x1": [3.0] * 3, "32x2": [2.0] * 3}),
        "compile": found_of(
            {"none": [2.0] * 3, "default": [1.0] * 3},
            {"none": [1.0] * 3, "default": [21.0, 3.0, 4.0]},
        ),
    }
    sentence = gains_sentence(axes)
    gains = "x 1.50 micro-batch 32x2", "x 2.00 compile default", "x 3.00"
    for name in (*gains, "21.0 s", "3.0 s", "40 s"):
        assert name in sentence
