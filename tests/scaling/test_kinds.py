"""What tells the series of a study apart, in words."""

from raybench.scaling.cells import series_of
from raybench.spec.run import DatasetSpec, RunSpec


def test_a_series_tells_what_differs_and_nothing_else() -> None:
    specs = [
        RunSpec(num_workers=workers, precision=precision)
        for workers in (1, 2)
        for precision in ("fp32", "bf16")
    ]
    assert series_of(specs) == [f"torch, mnist_small, {spec.precision}" for spec in specs]


def test_what_is_off_or_as_usual_is_told_of_the_others_alone() -> None:
    changes = [{}, {"exchange_gradients": False}, {"warmup_epochs": 1.0}, {"schedule": "cosine"}]
    assert series_of([RunSpec(**change) for change in changes]) == [
        "torch, mnist_small, schedule constant",
        "torch, mnist_small, no exchange_gradients, schedule constant",
        "torch, mnist_small, schedule constant, warmup_epochs 1",
        "torch, mnist_small, schedule cosine",
    ]


def test_a_class_stands_for_its_workload_where_that_is_enough() -> None:
    one, two, three = "a.b:Net", "a.c:Net", "a.b:Other"
    assert series_of([RunSpec(workload=one), RunSpec(workload=three)]) == [
        "torch, Net",
        "torch, Other",
    ]
    assert series_of([RunSpec(workload=one), RunSpec(workload=two)]) == [
        "torch, a.b:Net",
        "torch, a.c:Net",
    ]


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
