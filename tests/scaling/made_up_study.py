"""Results of a scaling study as they would be on a machine of known speed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from raybench.scaling.cells import cell_table
from raybench.scaling.published import STUDIES, Claim
from raybench.spec.run import RunSpec
from raybench.spec.scaling_study import ScalingStudy, study_cells
from raybench.stats.record import Evaluation, RunOutcome, RunRecord
from raybench.stats.step_times import StepTimes

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
EPOCH_S, EPOCH_STEPS = 1.0, 20


@dataclass(frozen=True)
class Machine:
    """What a run does here: seconds of a step, accuracy at its end, seconds to compile."""

    step_s: Callable[[RunSpec], float]
    accuracy: Callable[[RunSpec], float] = lambda spec: 0.9
    compile_s: float = 0.0


@dataclass(frozen=True)
class MadeUp:
    """As much of `raybench.load(DIR)` as a comparison reads."""

    scaling_study: ScalingStudy
    machine: Machine

    @cached_property
    def scaling(self) -> pd.DataFrame:
        runs, curves = {}, {}
        for cell in study_cells(self.scaling_study):
            for number in range(self.scaling_study.repeats):
                name, spec = cell.repeat(number)
                curves[name] = self._curve(spec)
                runs[name] = self._record(name, cell.name, spec, curves[name])
        return cell_table(self.scaling_study, runs, curves)

    def _curve(self, spec: RunSpec) -> list[Evaluation]:
        step = self.machine.step_s(spec)
        steps = StepTimes(
            num=EPOCH_STEPS,
            median_s=step,
            p25_s=step,
            p75_s=step,
            p95_s=step,
            max_s=step,
            first_s=step,
        )
        samples = EPOCH_STEPS * spec.global_batch_size
        return [
            Evaluation(
                index=index,
                epoch=index + 1.0,
                samples=(index + 1) * samples,
                train_s=(index + 1) * EPOCH_STEPS * step,
                train_loss=1.0,
                value=self.machine.accuracy(spec),
                learning_rate=spec.learning_rate,
                samples_per_s=spec.global_batch_size / step,
                best_value=self.machine.accuracy(spec),
                stop="epochs" if index else None,
                steps=steps,
            )
            for index in range(2)
        ]

    def _record(self, name: str, cell: str, spec: RunSpec, curve: list[Evaluation]) -> RunRecord:
        outcome = RunOutcome(
            evaluation=curve[-1],
            is_over=True,
            num_parameters=PARAMETERS.get(spec.workload),
            workers_per_node=(spec.num_workers,),
            ledger={"train": curve[-1].train_s, "compile": self.machine.compile_s},
        )
        record = outcome.record(name, spec, role="scaling", source=cell, stopped_by="interrupted")
        target = spec.objective.target
        is_reached = target is not None and curve[-1].value >= target
        return replace(record, time_to_target_s=curve[0].train_s if is_reached else None)


def usual(spec: RunSpec) -> float:
    """Seconds of a step: per sample, per step, for the exchange."""
    slow = 2.0 if spec.framework == "torch" else 1.0
    exchange = 0.02 if spec.num_workers > 1 and spec.exchange_gradients else 0.0
    return slow * (0.001 * spec.batch_size_per_worker + 0.002) * spec.accumulate + exchange


def compared(name: str, machine: Machine, *, quick: bool = True) -> dict[str, Claim]:
    results = MadeUp(STUDIES[name].study(quick), machine)
    found = STUDIES[name].compare(results.scaling_study, results.scaling)
    return {one.claim: one for one in found}
