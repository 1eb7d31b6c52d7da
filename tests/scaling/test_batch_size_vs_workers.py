"""Study 1: its cells, its published figures, and what its comparisons conclude."""

from made_up_study import Machine, compared, usual

from raybench.scaling.published import STUDIES
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import study_cells


def test_study_1_has_both_kinds_of_scaling_and_says_which() -> None:
    cells = study_cells(STUDIES["batch_size_vs_workers"].study(False))
    strong = {
        (cell.spec.num_workers, cell.spec.global_batch_size)
        for cell in cells
        if "strong" in cell.scalings
    }
    assert strong == {(k, batch) for k in (1, 2, 4, 8) for batch in (32, 64, 128, 256, 512)}
    weak = {
        (cell.spec.num_workers, cell.spec.batch_size_per_worker)
        for cell in cells
        if "weak" in cell.scalings
    }
    assert weak == {(k, 64) for k in (1, 2, 4, 8)}
    rules = {
        (cell.spec.num_workers, cell.spec.learning_rate_scaling, cell.spec.batch_size_per_worker)
        for cell in cells
        if cell.spec.learning_rate_scaling != "none"
    }
    assert rules == {(k, rule, 64) for k in (2, 4, 8) for rule in ("linear", "sqrt")}
    assert cells[0].spec.workload == "cnn7"


def test_study_1_compares_the_same_global_batch() -> None:
    """1.6 times on two workers at each batch, whatever the batch itself does to the speed."""
    speed = {1: 1.0, 2: 1.6, 4: 2.5, 8: 3.0}

    def step(spec: RunSpec) -> float:
        return spec.global_batch_size**0.7 / speed[spec.num_workers]

    claims = compared("batch_size_vs_workers", Machine(step), quick=False)
    for workers, times in {2: 1.6, 4: 2.5, 8: 3.0}.items():
        (one,) = [c for c in claims.values() if c.claim.startswith(f"{workers} GPUs train")]
        assert one.holds is True
        assert one.ours.startswith(f"{times:.3g} times")
    assert claims["Larger batches train faster"].holds is True


def test_study_1_tells_batch_sizes_from_worker_counts() -> None:
    def accuracy(spec: RunSpec) -> float:
        return 0.9 - 0.0002 * abs(spec.global_batch_size - 64) - 0.001 * spec.num_workers

    claims = compared("batch_size_vs_workers", Machine(usual, accuracy))
    assert claims["Accuracy depends on the batch size more than on the number of GPUs"].holds
    assert claims["A batch of 64 is the most accurate on average"].holds
    other = Machine(usual, lambda spec: 0.9 - 0.05 * spec.num_workers)
    claims = compared("batch_size_vs_workers", other)
    assert not claims["Accuracy depends on the batch size more than on the number of GPUs"].holds


def test_study_1_times_an_accuracy() -> None:
    words = "More GPUs reach an accuracy sooner"
    faster = Machine(lambda spec: spec.global_batch_size / spec.num_workers**0.5)
    claim = compared("batch_size_vs_workers", faster)[words]
    assert claim.holds is True
    assert claim.ours.startswith("1.41 times as soon")
    alike = Machine(lambda spec: spec.global_batch_size)
    assert compared("batch_size_vs_workers", alike)[words].holds is False
    never = Machine(faster.step_s, lambda spec: 0.5)
    assert compared("batch_size_vs_workers", never)[words].holds is None


def test_study_1_tells_what_a_rule_of_the_learning_rate_does() -> None:
    words = "A learning rate that grows with the GPUs makes weak scaling more accurate"

    def accuracy(spec: RunSpec) -> float:
        return {"none": 0.8, "sqrt": 0.85, "linear": 0.9}[spec.learning_rate_scaling]

    quick = compared("batch_size_vs_workers", Machine(usual, accuracy))[words]
    assert (quick.holds, quick.ours) == (True, "10 points")
    full = compared("batch_size_vs_workers", Machine(usual, accuracy), quick=False)[words]
    assert full.ours == "7.5 points (5 to 10, 6 pairs)"
    other = Machine(usual, lambda spec: 1.7 - accuracy(spec))
    assert compared("batch_size_vs_workers", other)[words].holds is False
