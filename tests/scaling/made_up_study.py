"""Results of a scaling study as they would be on a machine of known speed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from raybench.scaling.cells import cell_table
from raybench.scaling.published import STUDIES, Claim
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy, study_cells
from raybench.stats.step_times import StepTimes
from tests.factories import evaluation, record

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
EPOCH_STEPS = 20
STEP_TIMES = ("median_s", "p25_s", "p75_s", "p95_s", "max_s")


@dataclass(frozen=True)
class Machine:
    """What a run does here: seconds of a step, accuracy at its end, seconds to compile."""

    step_s: Callable[[RunSpec], float]
    accuracy: Callable[[RunSpec], float] = lambda spec: 0.9
    compile_s: float = 0.0


def cells_on(machine: Machine, study: ScalingStudy) -> pd.DataFrame:
    """Return the table of a study's cells; a run is two epochs, all its steps take as long."""
    runs, curves = {}, {}
    for cell in study_cells(study):
        for name, spec in map(cell.repeat, range(study.repeats)):
            step_s, value = machine.step_s(spec), machine.accuracy(spec)
            samples, epoch_s = EPOCH_STEPS * spec.global_batch_size, EPOCH_STEPS * step_s
            usual: dict[str, Any] = {
                "value": value,
                "samples_per_s": spec.global_batch_size / step_s,
            }
            usual["steps"] = StepTimes(num=EPOCH_STEPS, **dict.fromkeys(STEP_TIMES, step_s))
            curves[name] = [
                evaluation((i + 1) * epoch_s, index=i, samples=(i + 1) * samples, **usual)
                for i in range(2)
            ]
            target = spec.objective.target
            usual |= {"samples": 2 * samples, "stop": "epochs", "source": cell.name}
            ended = record(name, spec, 2 * epoch_s, role="scaling", index=1, **usual)
            runs[name] = replace(
                ended,
                num_parameters=PARAMETERS.get(spec.workload),
                workers_per_node=(spec.num_workers,),
                ledger=ended.ledger | {"train": 2 * epoch_s, "compile": machine.compile_s},
                time_to_target_s=epoch_s if target is not None and value >= target else None,
            )
    return cell_table(study, runs, curves)


def usual(spec: RunSpec) -> float:
    """Seconds of a step: per sample, per step, for the exchange."""
    slow = 2.0 if spec.framework == "torch" else 1.0
    exchange = 0.02 if spec.num_workers > 1 and spec.exchange_gradients else 0.0
    return slow * (0.001 * spec.batch_size_per_worker + 0.002) * spec.accumulate + exchange


@cache
def study_named(name: str, *, quick: bool) -> ScalingStudy:
    """Return a published study with one repeat, since all repeats of a made-up run are equal."""
    return STUDIES[name].study(quick).model_copy(update={"repeats": 1})


def compared(name: str, machine: Machine, *, quick: bool = True) -> dict[str, Claim]:
    study = study_named(name, quick=quick)
    return {one.claim: one for one in STUDIES[name].compare(study, cells_on(machine, study))}
