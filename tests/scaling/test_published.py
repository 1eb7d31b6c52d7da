"""Published studies: their cells, and the judgment of their claims on made-up machines of known
speed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pandas as pd
import pytest

from raybench.models.find import load_workload_dataset, require_framework
from raybench.models.layers import num_parameters
from raybench.scaling.cells import cell_table
from raybench.scaling.published import NOT_MEASURED, STUDIES, Claim, MeasuredPoint, judged
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy, study_cells
from tests.runs.made_up import equal_steps, point, run_of

PARAMETERS = {
    "mnist_small": 402_442,
    "mnist_large_dense": 4_104_202,
    "cnn7": 124_202,
    "cifar_cnn": 1_250_858,
    "deep_mlp": 75_850,
    "raybench.models.pictures:SmallDecodedDigits": 525_322,
    "raybench.models.pictures:DenseDecodedDigits": 4_104_202,
    "raybench.models.pictures:DecodedDigits": 124_202,
    "raybench.models.pictures:MediumDecodedDigits": 173_354,
}


@dataclass(frozen=True)
class Machine:
    """Made-up machine: seconds of a step, final accuracy, and seconds to compile, by run spec."""

    step_s: Callable[[RunSpec], float]
    accuracy: Callable[[RunSpec], float] = lambda spec: 0.9
    compile_s: float = 0.0


def cells_on(machine: Machine, study: ScalingStudy) -> pd.DataFrame:
    """Return the cell table of a study whose runs have two epochs of equal steps."""
    runs, curves = run_of(study, lambda spec, repeat: machine.step_s(spec))
    for name, run in runs.items():
        spec, value = run.spec, machine.accuracy(run.spec)
        steps = equal_steps(20, machine.step_s(spec))
        samples, epoch_s = 20 * spec.global_batch_size, 20 * steps.median_s
        ends = [{"samples": n * samples, "train_s": n * epoch_s} for n in (1, 2)]
        curves[name] = [
            point(i, samples / epoch_s, value=value, steps=steps, **end)
            for i, end in enumerate(ends)
        ]
        target = spec.objective.target
        reached_s = curves[name][0].train_s if target is not None and value >= target else None
        runs[name] = replace(
            run,
            best_value=value,
            time_to_target_s=reached_s,
            num_parameters=PARAMETERS.get(spec.workload),
            ledger=run.ledger | {"compile": machine.compile_s},
        )
    return cell_table(study, runs, curves)


def usual(spec: RunSpec) -> float:
    """Return seconds of a step: per sample, per step, and for the exchange."""
    slow = 2.0 if spec.framework == "torch" else 1.0
    exchange = 0.02 if spec.num_workers > 1 and spec.exchange_gradients else 0.0
    return slow * (0.001 * spec.batch_size_per_worker + 0.002) * spec.accumulate + exchange


@cache
def study_named(name: str, *, quick: bool) -> ScalingStudy:
    """Return a published study with one repeat, since all repeats of a made-up run are equal."""
    return STUDIES[name].study(quick).model_copy(update={"repeats": 1})


@cache
def compared(name: str, machine: Machine, *, quick: bool = True) -> dict[str, Claim]:
    """Return the claims of a published study, as judged on a made-up machine."""
    study = study_named(name, quick=quick)
    return STUDIES[name].compare(study, cells_on(machine, study))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", STUDIES)
def test_every_published_study_is_complete(name, quick):
    study = STUDIES[name].study(quick)
    assert study.name == name
    cells = study_cells(study)
    assert len(cells) >= 8
    for cell in cells:
        # No target that would end a run early.
        assert cell.spec.objective.kind == "best_at_budget"
        assert cell.spec.objective.max_train_seconds == 1e6
        assert cell.spec.epochs >= 2, "the first epoch is the warm-up"
    if quick:
        assert {cell.spec.num_workers for cell in cells} <= {1, 2}
        assert study.repeats >= 3
        downloaded = {"mnist"} if name == "mnist_data_parallel" else set()
        names = {cell.spec.dataset.name for cell in cells}
        assert names <= {"digits", "synthetic", "workload"} | downloaded


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("quick", [True, False])
def test_every_claim_is_judged(name, quick):
    claims = compared(name, Machine(usual, compile_s=1.0), quick=quick)
    assert len(claims) >= 5
    assert all(claim.published and "nan" not in claim.ours for claim in claims)
    unmeasured = [claim.claim for claim in claims if claim.ours == NOT_MEASURED]
    # Claims about more GPUs or a larger model than a quick study has.
    larger = ("4 GPUs", "8 GPUs", "Sub-batches", "The large TensorFlow model")
    assert all(quick and claim.startswith(larger) for claim in unmeasured)
    undecided = sum(claim.holds is None for claim in claims) - len(unmeasured)
    assert quick or undecided <= 2, "where made-up pairs disagree"


def of(*values: float) -> Claim:
    claim = {"claim": "It is fast", "published": "2 times", "holds": {"above": 1}}
    cells = [MeasuredPoint(RunSpec(), "weak", {"samples_per_s": value}) for value in values]
    return judged(claim, cells)


def test_a_claim_uses_only_finite_values():
    assert of(math.nan, 2.0, math.inf, 4.0) == of(2.0, 4.0)
    assert of(math.nan, 2.0).ours == "2 times"
    assert of(math.nan) == of() == Claim("It is fast", "2 times", NOT_MEASURED, None)


def test_a_claim_on_which_pairs_disagree_is_undecided():
    judgments = [of(2.0), of(2, 2, 0.5, 3), of(2, 2, 0.5), of(2, 0.5)]
    assert [claim.holds for claim in judgments] == [True, True, None, None]
    judgments = [of(0.5), of(0.5, 0.5, 2, 0.5), of(0.5, 0.5, 2)]
    assert [claim.holds for claim in judgments] == [False, False, None]


def near_64(spec: RunSpec) -> float:
    return 0.9 - 0.0002 * abs(spec.global_batch_size - 64) - 0.001 * spec.num_workers


def by_rule(spec: RunSpec) -> float:
    return {"none": 0.8, "sqrt": 0.85, "linear": 0.9}[spec.learning_rate_scaling]


def sooner(spec: RunSpec) -> float:
    return spec.global_batch_size / spec.num_workers**0.5


def alike(spec: RunSpec) -> float:
    return spec.num_workers * spec.batch_size_per_worker


def many_parameters_send_more(spec: RunSpec) -> float:
    many = spec.workload.endswith(":SmallDecodedDigits")
    sends = (0.05 if many else 0.01) if spec.exchange_gradients else 0.0
    return 0.001 * spec.batch_size_per_worker + sends


def times(factor: Callable[[RunSpec], float]) -> Machine:
    """Return the usual machine with steps longer by a factor."""
    return Machine(lambda spec: usual(spec) * factor(spec))


def accurate(accuracy: Callable[[RunSpec], float]) -> Machine:
    return Machine(usual, accuracy)


STUDY_1, STUDY_2, STUDY_3 = "batch_size_vs_workers", "finetune_lr_schedule", "bottleneck_probe"
STUDY_4, STUDY_5 = "synthetic_throughput", "mnist_data_parallel"
USUAL, SENT = Machine(usual), Machine(many_parameters_send_more)
# The least accurate run has the larger batch and no schedule.
BY_SCHEDULE = accurate(lambda s: 0.98 if s.schedule == "ramp_decay" else 0.76)
BY_SIZE = accurate(lambda s: 0.98 if s.batch_size_per_worker == 16 else 0.76)
PREFETCHING = times(lambda s: 0.7 if s.prefetch else 1.0)
DECODING = times(lambda s: 1.5 if s.dataset.name == "workload" else 1.0)
LARGE_SLOWS = times(lambda s: s.num_workers ** (2 * (s.workload != "mnist_small")))
SPEED = {1: 1.0, 2: 1.6, 4: 2.5, 8: 3.0}
AT_SAME_BATCH = Machine(lambda s: s.global_batch_size**0.7 / SPEED[s.num_workers])
QUICK = [
    (STUDY_1, "Accuracy depends", accurate(near_64), True, ""),
    (STUDY_1, "Accuracy depends", accurate(lambda s: 0.9 - 0.05 * s.num_workers), False, ""),
    (STUDY_1, "A batch of 64", accurate(near_64), True, ""),
    (STUDY_1, "More GPUs reach", Machine(sooner), True, "1.41 times as soon"),
    (STUDY_1, "More GPUs reach", Machine(sooner, lambda s: 0.5), None, ""),
    (STUDY_1, "A learning rate", accurate(by_rule), True, "10 points"),
    (STUDY_2, "The schedule makes", BY_SCHEDULE, True, ""),
    (STUDY_2, "A larger batch is far less", BY_SIZE, True, ""),
    # Two workers as fast as one are half of the ideal, not half of the time.
    (STUDY_2, "4 GPUs take half", Machine(alike), None, "1 times as fast on 2 workers as on one"),
    (STUDY_2, "Prefetching speeds", PREFETCHING, True, "1.43 times"),
    (STUDY_3, "A model of more parameters", SENT, True, "SmallDecodedDigits (525,322): "),
    (STUDY_3, "A larger batch lowers", SENT, True, ""),
    (STUDY_3, "An exchange takes", SENT, True, ""),
    (STUDY_3, "Real data, decoded", DECODING, False, "33.3 %"),
    # With a costly exchange strong scaling looks worse, but it is another curve.
    (STUDY_4, "Weak scaling", USUAL, True, ""),
    (STUDY_4, "Weak scaling", Machine(lambda s: s.batch_size_per_worker), False, ""),
    (STUDY_4, "Without exchange", USUAL, True, ""),
    (STUDY_5, "The small TensorFlow model gets", times(lambda s: s.num_workers**2), True, ""),
    (STUDY_5, "TensorFlow is faster", USUAL, True, ""),
    (STUDY_5, "The size of the dataset", times(lambda s: s.dataset.repeat), False, "0.5 times"),
    (STUDY_5, "TensorFlow's first epoch", Machine(usual, compile_s=60.0), True, ""),
    (STUDY_5, "The large TensorFlow model speeds", USUAL, None, ""),
]
FULL = [
    (STUDY_1, "2 GPUs train", AT_SAME_BATCH, True, "1.6 times"),
    (STUDY_1, "4 GPUs train", AT_SAME_BATCH, True, "2.5 times"),
    (STUDY_1, "8 GPUs train", AT_SAME_BATCH, True, "3 times"),
    (STUDY_1, "Larger batches train", AT_SAME_BATCH, True, ""),
    (STUDY_1, "A learning rate", accurate(by_rule), True, "7.5 points (5 to 10, 6 pairs)"),
    (STUDY_2, "4 GPUs take half", Machine(alike), False, "1 times as fast on 4 workers as on one"),
    (STUDY_2, "4 GPUs take half", Machine(lambda s: alike(s) * s.num_workers**-0.6), True, ""),
    (STUDY_5, "The large TensorFlow model speeds", LARGE_SLOWS, False, ""),
]


@pytest.mark.parametrize(
    ("name", "claim", "machine", "holds", "ours", "is_quick"),
    [*((*case, True) for case in QUICK), *((*case, False) for case in FULL)],
)
def test_claims_hold_on_machines_that_satisfy_them(name, claim, machine, holds, ours, is_quick):
    """`claim` and `ours` are the first words of the claim and of the measured values."""
    claims = compared(name, machine, quick=is_quick)
    (found,) = [each for each in claims if each.claim.startswith(claim)]
    assert found.holds is holds
    assert found.ours.startswith(ours)


@pytest.mark.parametrize("name", [STUDY_2, STUDY_3, STUDY_4])
def test_workloads_of_the_studies_train_on_their_data(name):
    """Study 3 compares decoded data with data in memory, since two arrays in memory would not
    exercise an input pipeline."""
    specs = [cell.spec for cell in study_cells(STUDIES[name].study(True))]
    for spec in {(other.workload, other.dataset.name): other for other in specs}.values():
        workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
        require_framework(workload, spec.framework)
        assert tuple(dataset.input_shape) == tuple(workload.input_shape)
        if name == STUDY_3:
            assert spec.prefetch == 0
            assert dataset.train.is_on_demand == (spec.dataset.name == "workload")
            assert len(dataset.train) == 1257
            count = num_parameters(workload.layers, workload.input_shape)
            assert count == PARAMETERS[spec.workload]
    if name == STUDY_3:
        assert {spec.dataset.name for spec in specs} == {"workload", "synthetic"}
