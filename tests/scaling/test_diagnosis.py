"""Conclusions of `diagnose` from made-up probes: every kind of bottleneck, its remedies and their
uncertainty; variants that keep the learning curve, and the choice of the fastest."""

import math
from typing import Any

import numpy as np
import pytest
from made_up_probes import spec_of, step_of, times_of

from raybench.scaling.diagnosis import (
    AXES,
    HEADS,
    NOT_SURE,
    AxisProbes,
    Leeway,
    Outlook,
    find_bottleneck,
    gains_sentence,
    variants_of,
)
from raybench.scaling.shares import Probe, Probes
from raybench.scaling.throughput import FEED_OVERLAP
from raybench.spec.run import ResourceRequest, RunSpec

pytestmark = pytest.mark.usefixtures("without_pollux")

KINDS = {
    "compute": {"compute": 0.2, "overhead": 0.01, "exchange": 0.02, "reading": 0.01},
    "communication": {"compute": 0.02, "overhead": 0.003, "exchange": 0.2, "reading": 0.002},
    "input": {"compute": 0.02, "overhead": 0.003, "exchange": 0.01, "reading": 0.1},
    "overhead": {"compute": 0.0002, "overhead": 0.002, "exchange": 0.0003, "reading": 0.0001},
}


@pytest.mark.parametrize(
    ("kind", "remedies"),
    [
        ("compute", ["num_workers: 4"]),
        (
            "communication",
            ["accumulate: 4", "batch_size_per_worker: 256", "gradient_compression: bf16"],
        ),
        ("input", ["prefetch: 2", "data in memory"]),
        ("overhead", ["batch_size_per_worker: 256"]),
    ],
)
def test_every_bottleneck_is_found_with_its_remedies(kind, remedies):
    spec = spec_of()
    verdict = find_bottleneck(spec, times_of(spec, noise=0.08, **KINDS[kind]), num_parameters=10**6)
    assert verdict.kind == verdict.document()["verdict"] == kind
    assert verdict.shares[kind].value > 0.5
    assert verdict.num_bytes == 4_000_000
    assert verdict.sentence.startswith(HEADS[kind])
    changes = [gain.change for gain in verdict.gains]
    assert set(remedies) <= set(changes)
    assert verdict.gains[0].phrase in verdict.sentence
    if kind == "communication":  # fewer workers are suggested first if they are not slower
        assert verdict.gains[0].change == "num_workers: 1"
        assert verdict.gains[0].workers == 0.5


def test_the_sentence_contains_the_measured_numbers():
    spec = spec_of()
    times = times_of(spec, noise=0.0, compute=0.02, overhead=0.01, exchange=0.06, reading=0.01)
    sentence = find_bottleneck(spec, times, num_parameters=2_500_000, num_nodes=2).sentence
    for name in ("60 %", "100 ms", "10 MB", "2 workers", "2 hosts", "compute 20 %", "input 10 %"):
        assert name in sentence


def test_predicted_gains_are_near_the_true_gains():
    """The parts of these steps do not overlap."""
    spec = spec_of()
    parts = {"compute": 0.08, "exchange": 0.08, "overhead": 0.003, "reading": 0.01}
    times = times_of(spec, noise=0.0, **parts)
    step = sum(parts.values())
    outlook = Outlook.of(spec, Probes.of(spec), times, num_nodes=1)
    more_samples = 4 * (parts["compute"] + parts["reading"]) + parts["exchange"]
    true_batch = 4 * step / (more_samples + parts["overhead"])
    true_every = 4 * step / (more_samples + 4 * parts["overhead"])
    true_compressed = step / (step - parts["exchange"] / 2)
    for gain, true in (
        (outlook.larger_batch(), true_batch),
        (outlook.fewer_exchanges(), true_every),
        (outlook.compression(), true_compressed),
    ):
        assert gain.times == pytest.approx(true, rel=0.1), gain
        assert gain.low <= true <= gain.high, gain
    alone = outlook.other_workers(1)
    true_alone = step / (parts["compute"] + parts["overhead"] + parts["reading"]) / 2
    assert alone.times == pytest.approx(true_alone, rel=0.1)
    assert alone.workers == 0.5


def test_prefetching_hides_at_most_one_step():
    spec = spec_of()
    times = times_of(spec, noise=0.0, **KINDS["input"])
    outlook = Outlook.of(spec, Probes.of(spec), times, num_nodes=1)
    # 0.133 s now; reading alone takes 0.1 s, the step without it 0.033 s.
    assert outlook.prefetch().times == pytest.approx(0.133 / 0.1, rel=0.01)
    assert outlook.quicker_data().times == pytest.approx(0.133 / 0.033, rel=0.01)


def test_augmentation_gains_from_twice_as_many_threads():
    """Reading alone takes 0.5 s for a step of 0.1 s, so twice as many readers halve it."""
    spec = spec_of(num_workers=1, prefetch=2, augment=["flip"])
    parts = {"compute": 0.09, "overhead": 0.01, "exchange": 0.0, "batch": 64}
    times = {
        probe: [max(step_of(probe, reading=0.0, **parts), 0.5 * probe.reads)] * 5
        for probe in Probes.of(spec).names
    }
    gain = find_bottleneck(spec, times).gains[0]
    assert gain.change == "prefetch: 4"
    assert gain.times == pytest.approx(2, rel=0.05)


def test_with_prefetching_each_step_hides_its_own_reading():
    """The hidden reading time grows with the step, so longer steps are not charged for the reading
    that the current step could not hide."""
    spec = spec_of(num_workers=1, prefetch=2)
    parts = {"compute": 0.03, "overhead": 0.01, "exchange": 0.0, "batch": 64}

    def longer(worked, reading):
        return float(np.linalg.norm([worked, reading], FEED_OVERLAP))

    def step(probe: Probe) -> float:
        reading = 0.06 * probe.batch_size_per_worker / 64 * probe.reads
        return longer(step_of(probe, reading=0.0, **parts), reading)

    probes = Probes.of(spec)
    outlook = Outlook.of(
        spec, probes, {probe: [step(probe)] * 4 for probe in probes.names}, num_nodes=1
    )
    true = 4 * longer(0.04, 0.06) / longer(0.13, 0.24)
    gain = outlook.larger_batch()
    assert gain.times == pytest.approx(true, rel=0.03)
    assert gain.low <= true <= gain.high
    # All three bounds hide the same reading, so the uncertainty of the sum is smaller.
    assert gain.high / gain.low < 1.25
    every = outlook.fewer_exchanges()
    assert every.times == pytest.approx(4 * longer(0.04, 0.06) / longer(0.16, 0.24), rel=0.06)


def test_the_gain_of_a_second_worker_is_uncertain_with_one_worker():
    spec = spec_of(num_workers=1)
    verdict = find_bottleneck(spec, times_of(spec, **KINDS["compute"]), num_parameters=10**6)
    assert verdict.num_bytes == 0
    (second_worker, *_) = [gain for gain in verdict.gains if gain.change == "num_workers: 2"]
    assert second_worker.high / second_worker.low > 1.3


def test_a_large_spread_gives_no_verdict():
    spec = spec_of()
    parts = {"compute": 0.05, "exchange": 0.055, "overhead": 0.005, "reading": 0.0}
    verdict = find_bottleneck(spec, times_of(spec, noise=0.1, rounds=3, **parts))
    assert verdict.kind == NOT_SURE
    assert verdict.gains == []
    assert "communication" in verdict.sentence
    assert "compute" in verdict.sentence


def test_a_stalled_round_gives_no_verdict_until_more_rounds_are_measured():
    spec = spec_of()

    for rounds, kind in ((3, NOT_SURE), (8, "compute")):
        times = times_of(spec, rounds=rounds, **KINDS["compute"])
        times[Probes.of(spec).as_it_is][1] *= 20
        verdict = find_bottleneck(spec, times)
        assert verdict.kind == kind
        assert bool(verdict.gains) == (kind != NOT_SURE)


def test_compressed_gradients_count_fewer_bytes_and_are_not_suggested_again():
    spec = spec_of(gradient_compression="bf16")
    verdict = find_bottleneck(spec, times_of(spec, **KINDS["communication"]), num_parameters=10**6)
    assert verdict.num_bytes == 2_000_000
    assert all("gradient_compression" not in gain.change for gain in verdict.gains)


def test_extreme_parts_give_finite_gains():
    """Steps without exchange, and steps that consist only of exchange or overhead."""
    spec = spec_of()
    for parts in ({"compute": 0.1}, {"exchange": 0.1, "overhead": 1e-6}, {"overhead": 0.001}):
        verdict = find_bottleneck(spec, times_of(spec, noise=0.0, **parts))
        for gain in verdict.gains:
            assert all(math.isfinite(value) for value in (gain.times, gain.low, gain.high))


def fits_two(request: ResourceRequest) -> bool:
    return request.num_workers <= 2


LEEWAY = {"equal_frameworks": True, "batch_statistics": False, "reads": True, "fits": fits_two}


ON_GPU = {"gpus_per_worker": 1}


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
        # CUDA graphs are tried on GPUs, and not with several passes.
        ("compile", ON_GPU, ["none", "default", "reduce-overhead", "max-autotune"]),
        ("compile", ON_GPU | {"accumulate": 2}, ["none", "default"]),
        ("prefetch", {"prefetch": 3, "cpus_per_worker": 2}, ["3", "0", "1", "2"]),
        ("framework", {"compile": "default"}, ["torch", "tensorflow"]),
    ],
)
def test_variants_begin_with_that_of_the_spec(axis, changes, expected):
    spec = RunSpec(**changes)
    by_name = variants(axis, spec)
    assert list(by_name) == expected
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
def test_variants_that_change_the_learning_curve_are_not_measured(axis, changes, leeway, reason):
    assert reason in str(variants(axis, RunSpec(**changes), **leeway))


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
def test_a_variant_is_chosen_only_beyond_noise(times, next_round, chosen):
    probes = found_of(times)
    assert probes.next_round() == next_round
    if chosen is not None:
        assert probes.chosen == chosen


@pytest.mark.parametrize(("variants", "noise"), [(2, 0.03), (9, 0.08)])
def test_equal_variants_are_replaced_in_at_most_5_percent_of_diagnoses(variants, noise):
    rng, chosen = np.random.default_rng(0), 0
    for _ in range(150):
        probes = found_of({str(variant): [] for variant in range(variants)})
        for _ in range(4):
            for variant in probes.next_round():
                probes.step_s[variant].append(float(np.exp(noise * rng.standard_normal())))
        chosen += probes.chosen != "0"
    assert chosen <= 4, f"{150 * 0.05 / len(AXES)} of 150 are expected at most, on one axis"


def test_the_sentence_has_the_gain_of_each_axis_and_the_break_even_of_compilation():
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
