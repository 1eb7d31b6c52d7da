"""Study 2: its cells, its published figures, and what its comparisons conclude."""

import pytest
from made_up_study import Machine, compared, usual

from raybench.scaling.published import STUDIES
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import study_cells


def test_study_2_separates_the_schedule_from_the_batch() -> None:
    """Its least accurate run had the larger batch and no schedule."""

    def accuracy(spec: RunSpec) -> float:
        return 0.98 if spec.schedule == "ramp_decay" else 0.76

    claims = compared("finetune_lr_schedule", Machine(usual, accuracy))
    assert claims["The schedule makes the model more accurate"].holds is True
    assert claims["A larger batch is far less accurate"].holds is False
    batch = Machine(usual, lambda spec: 0.98 if spec.batch_size_per_worker == 16 else 0.76)
    claims = compared("finetune_lr_schedule", batch)
    assert claims["A larger batch is far less accurate"].holds is True
    assert claims["The schedule makes the model more accurate"].holds is False


def test_study_2_judges_four_workers_by_four_alone() -> None:
    """Two workers that are no faster than one are half of the ideal, and no half of the time."""
    words = "4 GPUs take half the time of one"
    alike = Machine(lambda spec: spec.num_workers * spec.batch_size_per_worker)
    quick = compared("finetune_lr_schedule", alike)[words]
    assert quick.holds is None
    assert quick.ours.startswith("1 times as fast on 2 workers as on one")
    full = compared("finetune_lr_schedule", alike, quick=False)[words]
    assert full.holds is False
    assert full.ours.startswith("1 times as fast on 4 workers as on one")
    faster = Machine(lambda spec: spec.num_workers**0.4 * spec.batch_size_per_worker)
    assert compared("finetune_lr_schedule", faster, quick=False)[words].holds is True
    assert "2.01 times as fast with 16 a GPU, 2.36 with 32" in full.published


def test_study_2_uses_the_schedule_of_its_notebooks() -> None:
    from raybench.spec.schedule import build_schedule

    cells = study_cells(STUDIES["finetune_lr_schedule"].study(False))
    (spec,) = [
        cell.spec
        for cell in cells
        if (cell.spec.num_workers, cell.spec.batch_size_per_worker) == (4, 16)
        and cell.spec.schedule == "ramp_decay"
        and not cell.spec.prefetch
    ]
    rate = build_schedule(spec, 1000)
    found = [rate(1000.0 * epoch) for epoch in range(10)]
    assert found == pytest.approx(
        [1e-5, 4.8e-5, 8.6e-5, 1.24e-4, 1.62e-4, 2e-4, 1.62e-4, 1.316e-4, 1.0728e-4, 8.7824e-5]
    )


def test_prefetching_is_compared_with_the_same_run_without_it() -> None:
    words = "Prefetching speeds training up"
    helps = Machine(lambda spec: usual(spec) * (0.7 if spec.prefetch else 1.0))
    claim = compared("finetune_lr_schedule", helps)[words]
    assert claim.holds is True
    assert claim.ours.startswith("1.43 times")
    assert compared("finetune_lr_schedule", Machine(usual))[words].holds is False
