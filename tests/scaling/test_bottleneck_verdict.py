"""The verdict on made-up probes: each kind, and when it is not sure."""

import math

import pytest
from made_up_probes import spec_of, step_of, times_of

from raybench.scaling.bottleneck import HEADS, NOT_SURE, Outlook, judge
from raybench.scaling.shares import Probe, Probes, StepPart
from raybench.scaling.throughput import FEED_OVERLAP

pytestmark = pytest.mark.usefixtures("without_pollux")

KINDS = {
    "compute": {"compute": 0.2, "overhead": 0.01, "exchange": 0.02, "reading": 0.01},
    "communication": {"compute": 0.02, "overhead": 0.003, "exchange": 0.2, "reading": 0.002},
    "input": {"compute": 0.02, "overhead": 0.003, "exchange": 0.01, "reading": 0.1},
    "overhead": {"compute": 0.0002, "overhead": 0.002, "exchange": 0.0003, "reading": 0.0001},
}


@pytest.mark.parametrize(
    ("kind", "tries"),
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
def test_every_kind_and_what_to_try(kind: StepPart, tries: list[str]) -> None:
    spec = spec_of()
    found = judge(spec, times_of(spec, noise=0.08, **KINDS[kind]), num_parameters=10**6)
    assert found.kind == found.document()["verdict"] == kind
    assert found.shares[kind].value > 0.5
    assert found.num_bytes == 4_000_000
    assert found.sentence.startswith(HEADS[kind])
    changes = [gain.change for gain in found.gains]
    assert set(tries) <= set(changes)
    assert found.gains[0].phrase in found.sentence
    if kind == "communication":  # fewer workers come first where they lose nothing
        assert found.gains[0].change == "num_workers: 1"
        assert found.gains[0].workers == 0.5


def test_the_sentence_has_the_numbers() -> None:
    spec = spec_of()
    times = times_of(spec, noise=0.0, compute=0.02, overhead=0.01, exchange=0.06, reading=0.01)
    sentence = judge(spec, times, num_parameters=2_500_000, num_nodes=2).sentence
    for name in ("60 %", "100 ms", "10 MB", "2 workers", "2 hosts", "compute 20 %", "input 10 %"):
        assert name in sentence


def test_a_gain_is_about_what_the_change_would_bring() -> None:
    """The parts of these steps do not overlap."""
    spec = spec_of()
    parts = {"compute": 0.08, "exchange": 0.08, "overhead": 0.003, "reading": 0.01}
    times = times_of(spec, noise=0.0, **parts)
    now = sum(parts.values())
    outlook = Outlook.of(spec, Probes.of(spec), times, num_nodes=1)
    more_samples = 4 * (parts["compute"] + parts["reading"]) + parts["exchange"]
    true_batch = 4 * now / (more_samples + parts["overhead"])
    true_every = 4 * now / (more_samples + 4 * parts["overhead"])
    true_compressed = now / (now - parts["exchange"] / 2)
    for gain, true in (
        (outlook.larger_batch(), true_batch),
        (outlook.fewer_exchanges(), true_every),
        (outlook.compression(), true_compressed),
    ):
        assert gain.times == pytest.approx(true, rel=0.1), gain
        assert gain.low <= true <= gain.high, gain
    alone = outlook.other_workers(1)
    true_alone = now / (parts["compute"] + parts["overhead"] + parts["reading"]) / 2
    assert alone.times == pytest.approx(true_alone, rel=0.1)
    assert alone.workers == 0.5


def test_prefetch_hides_at_most_the_step() -> None:
    spec = spec_of()
    times = times_of(spec, noise=0.0, **KINDS["input"])
    outlook = Outlook.of(spec, Probes.of(spec), times, num_nodes=1)
    # 0.133 s now; reading alone takes 0.1 s, the step without it 0.033 s.
    assert outlook.prefetch().times == pytest.approx(0.133 / 0.1, rel=0.01)
    assert outlook.quicker_data().times == pytest.approx(0.133 / 0.033, rel=0.01)


def test_augmented_samples_gain_from_twice_as_many_threads() -> None:
    """Readers alone take 0.5 s of a step of 0.1 s: twice as many halve it."""
    spec = spec_of(num_workers=1, prefetch=2, augment=["flip"])
    parts = {"compute": 0.09, "overhead": 0.01, "exchange": 0.0, "batch": 64}
    times = {
        probe: [max(step_of(probe, reading=0.0, **parts), 0.5 * probe.reads)] * 5
        for probe in Probes.of(spec).names
    }
    found = judge(spec, times).gains[0]
    assert found.change == "prefetch: 4"
    assert found.times == pytest.approx(2, rel=0.05)


def test_with_prefetch_each_step_hides_its_own_reading() -> None:
    """What a step hides grows with it: a longer one is not charged for what the present one left
    over."""
    spec = spec_of(num_workers=1, prefetch=2)
    parts = {"compute": 0.03, "overhead": 0.01, "exchange": 0.0, "batch": 64}

    def step(probe: Probe) -> float:
        samples = probe.batch_size_per_worker / 64
        return whole(step_of(probe, reading=0.0, **parts), 0.06 * samples * probe.reads)

    def whole(worked: float, reading: float) -> float:
        return (worked**FEED_OVERLAP + reading**FEED_OVERLAP) ** (1 / FEED_OVERLAP)

    probes = Probes.of(spec)
    outlook = Outlook.of(spec, probes, {one: [step(one)] * 4 for one in probes.names}, num_nodes=1)
    true = 4 * whole(0.04, 0.06) / whole(0.13, 0.24)
    found = outlook.larger_batch()
    assert found.times == pytest.approx(true, rel=0.03)
    assert found.low <= true <= found.high
    # All three ends hide the same reading, so a doubt in the step is less of one in the whole.
    assert found.high / found.low < 1.25
    every = outlook.fewer_exchanges()
    assert every.times == pytest.approx(4 * whole(0.04, 0.06) / whole(0.16, 0.24), rel=0.06)


def test_one_worker_is_told_of_more_with_the_doubt_of_never_having_seen_two() -> None:
    spec = spec_of(num_workers=1)
    found = judge(spec, times_of(spec, **KINDS["compute"]), num_parameters=10**6)
    assert found.num_bytes == 0
    (more, *_) = [gain for gain in found.gains if gain.change == "num_workers: 2"]
    assert more.high / more.low > 1.3


def test_the_spread_hides_it() -> None:
    spec = spec_of()
    parts = {"compute": 0.05, "exchange": 0.055, "overhead": 0.005, "reading": 0.0}
    found = judge(spec, times_of(spec, noise=0.1, rounds=3, **parts))
    assert found.kind == NOT_SURE
    assert found.gains == []
    assert "communication" in found.sentence
    assert "compute" in found.sentence


def test_a_stalled_round_makes_doubt_and_more_rounds_take_it_away() -> None:
    spec = spec_of()

    def stalled(rounds: int) -> str:
        times = times_of(spec, rounds=rounds, **KINDS["compute"])
        times[Probes.of(spec).as_it_is][1] *= 20
        return judge(spec, times).kind

    assert stalled(3) == NOT_SURE
    assert stalled(8) == "compute"


def test_compressed_gradients_are_fewer_bytes_and_not_advised_again() -> None:
    spec = spec_of(gradient_compression="bf16")
    found = judge(spec, times_of(spec, **KINDS["communication"]), num_parameters=10**6)
    assert found.num_bytes == 2_000_000
    assert all("gradient_compression" not in gain.change for gain in found.gains)


def test_numbers_stay_numbers_at_the_edges() -> None:
    """No exchange at all, or a step that is nothing else."""
    spec = spec_of()
    for parts in ({"compute": 0.1}, {"exchange": 0.1, "overhead": 1e-6}, {"overhead": 0.001}):
        found = judge(spec, times_of(spec, noise=0.0, **parts))
        for gain in found.gains:
            assert all(math.isfinite(value) for value in (gain.times, gain.low, gain.high))
