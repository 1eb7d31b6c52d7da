"""What tells the series of a study apart, in words."""

from raybench.core.spec import DatasetSpec, RunSpec
from raybench.results.scaling.kinds import series_of


def test_a_series_tells_what_differs_and_nothing_else() -> None:
    specs = [
        RunSpec(num_workers=workers, precision=precision)
        for workers in (1, 2)
        for precision in ("fp32", "bf16")
    ]
    assert series_of(specs) == [f"torch, mnist_small, precision {spec.precision}" for spec in specs]


def test_a_dataset_is_told_by_what_it_reads() -> None:
    made_up = [DatasetSpec(name="synthetic", num_samples=count) for count in (64, 128)]
    data = [DatasetSpec(name="digits"), *made_up]
    assert series_of([RunSpec(dataset=one) for one in data]) == [
        "torch, mnist_small, digits",
        "torch, mnist_small, synthetic, dataset.num_samples 64",
        "torch, mnist_small, synthetic, dataset.num_samples 128",
    ]
    assert series_of([RunSpec(dataset=one) for one in data[:2]]) == [
        "torch, mnist_small, digits",
        "torch, mnist_small, synthetic",
    ]
