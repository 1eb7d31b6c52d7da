"""The probes of a run spec, trained in turns on workers that stay warm."""

from collections.abc import Iterator

from raybench.cluster.reach import MISNAMED
from raybench.cluster.run_once import run_once
from raybench.cluster.signals import Interrupt
from raybench.core.errors import StudyError, UserError
from raybench.core.record import Evaluation, RunRecord
from raybench.core.spec import RunSpec
from raybench.data.dataset import Dataset
from raybench.results.errors import keep_error
from raybench.results.store import Store
from raybench.scaling.probes import (
    PILOT_INTERVALS,
    PILOT_STEPS,
    Probe,
    Probes,
    probe_spec,
    rounds,
    step_seconds,
    steps_for,
    whole_rounds,
)
from raybench.scaling.shares import Shares
from raybench.scaling.verdict import Verdict, judge
from raybench.search.pipeline.waits import Waits


class ProbeRuns:
    """Trains probes one at a time and keeps the seconds of their steps."""

    def __init__(
        self,
        pool: object,
        spec: RunSpec,
        dataset: Dataset,
        store: Store,
        waits: Waits,
        interrupt: Interrupt,
    ) -> None:
        self.spec, self.probes = spec, Probes.of(spec)
        self.times: dict[Probe, list[float]] = {probe: [] for probe in self.probes.names}
        """Seconds of a step: one of each probe for each round."""
        self._pool, self._dataset, self._store = pool, dataset, store
        self._waits, self._interrupt = waits, interrupt
        self._steps: dict[Probe, int] = {}
        self._orders: Iterator[list[Probe]] = rounds(self.probes, seed=spec.seed)
        self._record: RunRecord | None = None

    @property
    def num_rounds(self) -> int:
        """Rounds that all probes have finished."""
        return whole_rounds(self.times)

    @property
    def is_sure(self) -> bool:
        """Whether one part of the step is the largest beyond doubt."""
        return self._shares.is_sure

    @property
    def num_parameters(self) -> int:
        """Of the model."""
        return (self._record.num_parameters or 0) if self._record else 0

    @property
    def num_nodes(self) -> int:
        """Hosts of the workers; 1 where that is not known."""
        return max(1, self._record.num_nodes) if self._record else 1

    def pilot(self, seconds: float) -> None:
        """Find out how many steps of each probe take about so many seconds; not measured."""
        for probe, name in self.probes.names.items():
            if self._interrupt.is_set:
                return
            curve = self._train(
                probe, f"{name}-pilot", steps=PILOT_STEPS, intervals=PILOT_INTERVALS
            )
            if len(curve) == PILOT_INTERVALS:
                self._steps[probe] = steps_for(seconds, self._step_s(curve, probe))

    def round(self, number: int) -> None:
        """Train every probe once, in the order of this round."""
        for probe in next(self._orders):
            if self._interrupt.is_set:
                return
            name = self.probes.names[probe]
            curve = self._train(probe, f"{name}-{number}", steps=self._steps[probe])
            if not self._interrupt.is_set:
                self.times[probe].append(self._step_s(curve, probe))

    def so_far(self) -> str:
        """Return the shares after the rounds so far, in words."""
        shares = self._shares
        found = ", ".join(f"{part} {shares[part].percent}" for part in shares.order)
        return found if shares.is_sure else f"{found} (not sure yet)"

    def verdict(self) -> Verdict:
        """Return what bounds the training."""
        number = self.num_rounds
        return judge(
            self.spec,
            {probe: seconds[:number] for probe, seconds in self.times.items()},
            num_nodes=self.num_nodes,
            num_parameters=self.num_parameters,
        )

    @property
    def _shares(self) -> Shares:
        return Shares.of(self.probes, self.times)

    def _step_s(self, curve: list[Evaluation], probe: Probe) -> float:
        passes = self.spec.num_workers * self.spec.accumulate
        return step_seconds(curve, probe.batch_size_per_worker * passes)

    def _train(
        self, probe: Probe, name: str, *, steps: int, intervals: int | None = None
    ) -> list[Evaluation]:
        """Train a probe to its end, recorded; return its curve. A failure ends the diagnosis."""
        more = {} if intervals is None else {"intervals": intervals}
        spec = probe_spec(self.spec, probe, self._dataset, steps=steps, **more)
        curve: list[Evaluation] = []

        def on_evaluation(name: str, evaluation: Evaluation) -> None:
            self._waits.is_training = True
            curve.append(evaluation)
            self._store.append(evaluation.line(name))

        record, _ = run_once(
            self._pool,
            spec,
            name,
            role="scaling",
            source=self.probes.names[probe],
            on_evaluation=on_evaluation,
            stopped_by=self._interrupt.reason,
            on_error=lambda *error: keep_error(self._store, *error),
        )
        self._store.append(record.line())
        if self._waits.fault is not None:
            raise self._waits.fault
        if record.message is not None and record.message.startswith(MISNAMED):
            raise UserError(record.message)
        if record.failure is not None:
            raise StudyError(f"Probe {name} failed, {record.failure}: {record.message}.")
        self._record = record
        return curve
