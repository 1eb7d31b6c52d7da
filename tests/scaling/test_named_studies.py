"""What all named studies have in common: whole files, claims that are told, pairs of cells."""

import math

import pytest
from made_up_study import Machine, cells_on, compared, usual

from raybench.models.find import load_workload_dataset, require_framework
from raybench.scaling.published import (
    NOT_MEASURED,
    STUDIES,
    Claim,
    MeasuredPoint,
    judged,
)
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import study_cells


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_whole(name: str, quick: bool) -> None:
    study = STUDIES[name].study(quick)
    assert study.name == name
    cells = study_cells(study)
    assert len(cells) >= 8
    for cell in cells:
        # Judged by nothing that would end a run early.
        assert cell.spec.objective.kind == "best_at_budget"
        assert cell.spec.objective.max_train_seconds == 1e6
        assert cell.spec.epochs >= 2, "the first epoch is the warm-up"
    if quick:
        assert {cell.spec.num_workers for cell in cells} <= {1, 2}
        assert study.repeats >= 3


@pytest.mark.parametrize("name", STUDIES)
def test_the_data_of_a_quick_study_need_no_download(name: str) -> None:
    names = {cell.spec.dataset.name for cell in study_cells(STUDIES[name].study(True))}
    assert names <= {"digits", "synthetic", "workload"} | (
        {"mnist"} if name == "mnist_data_parallel" else set()
    )


@pytest.mark.parametrize("name", STUDIES)
def test_every_claim_is_told_of_a_quick_study(name: str) -> None:
    claims = compared(name, Machine(usual, compile_s=1.0))
    assert len(claims) >= 5
    unmeasured = [one.claim for one in claims.values() if one.ours == NOT_MEASURED]
    # More GPUs than a quick study has, or its larger model.
    larger = ("4 GPUs", "8 GPUs", "Sub-batches", "The large TensorFlow model")
    assert all(one.startswith(larger) for one in unmeasured)
    for one in claims.values():
        assert one.published
        assert "nan" not in one.ours


def of(*values: float) -> Claim:
    said = {"claim": "It is fast", "published": "2 times", "holds": {"above": 1}}
    cells = [MeasuredPoint(RunSpec(), "weak", {"samples_per_s": one}) for one in values]
    return judged(said, cells)


def test_a_claim_is_of_the_values_that_are_known() -> None:
    assert of(math.nan, 2.0, math.inf, 4.0) == of(2.0, 4.0)
    assert of(math.nan, 2.0).ours == "2 times"
    assert of(math.nan) == of() == Claim("It is fast", "2 times", NOT_MEASURED, None)


def test_a_claim_that_pairs_disagree_on_is_not_told() -> None:
    told = [of(2.0), of(2, 2, 0.5, 3), of(2, 2, 0.5), of(2, 0.5)]
    assert [one.holds for one in told] == [True, True, None, None]
    told = [of(0.5), of(0.5, 0.5, 2, 0.5), of(0.5, 0.5, 2)]
    assert [one.holds for one in told] == [False, False, None]


FIGURES = [
    *("samples_per_s", "first_epoch_samples_per_s", "step_median_s", "speedup_same_batch"),
    *("efficiency_same_batch", "accuracy", "best_accuracy"),
]


@pytest.mark.parametrize("name", STUDIES)
def test_a_cell_without_figures_is_left_out_of_every_claim(name: str) -> None:
    study = STUDIES[name].study(True)
    scaling = cells_on(Machine(usual, compile_s=1.0), study)
    for row in range(0, len(scaling), 5):
        holes = scaling.copy()
        holes.loc[row, FIGURES] = math.nan
        for one in STUDIES[name].compare(study, holes):
            assert "nan" not in one.ours, one
            assert one.holds is None or one.ours != "not measured here", one


@pytest.mark.parametrize("name", STUDIES)
def test_a_full_study_is_compared_too(name: str) -> None:
    claims = compared(name, Machine(usual, compile_s=1.0), quick=False)
    assert all(one.ours != NOT_MEASURED for one in claims.values())
    assert sum(one.holds is None for one in claims.values()) <= 2, "where made-up pairs disagree"


def test_workloads_of_the_studies_train_in_their_framework() -> None:
    """Their data load, with the shape that the layers take."""
    for name in ("finetune_lr_schedule", "synthetic_throughput"):
        cells = study_cells(STUDIES[name].study(True))
        for spec in {cell.spec.workload: cell.spec for cell in cells}.values():
            workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
            require_framework(workload, spec.framework)
            assert tuple(dataset.input_shape) == tuple(workload.input_shape)
