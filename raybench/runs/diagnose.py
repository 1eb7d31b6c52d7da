"""The command `raybench diagnose`: find what limits the speed of a run, or the fastest settings
that leave its learning curve unchanged (`--fastest`).

It trains probes: short runs of variants of the run, for example without gradient exchange.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from raybench.cluster.layout import local_capacity
from raybench.cluster.session import chosen_address
from raybench.cluster.signals import Interrupt
from raybench.data.dataset import NO_DATA, Dataset
from raybench.models.base import LayerWorkload
from raybench.models.find import load_workload_dataset
from raybench.report.console import print_frame, say
from raybench.report.export import export
from raybench.results.place import refuse_other_kind
from raybench.results.store import DIAGNOSIS, PROBED, STUDY_FILE, Store, StudyKind, with_session
from raybench.runs.frame import CommandFrame, OpenStudy
from raybench.runs.lifecycle import SingleRun, single_runs
from raybench.runs.options import DiagnoseOptions
from raybench.runs.train import (
    check_connected,
    check_run,
    read_spec,
)
from raybench.runs.wait_watch import Deadline, RunLines, live_session
from raybench.scaling.diagnosis import (
    AXES,
    AxisProbes,
    BottleneckVerdict,
    Leeway,
    find_bottleneck,
    gains_sentence,
    milliseconds,
    variants_of,
)
from raybench.scaling.shares import (
    FEWEST_ROUNDS,
    INTERVALS,
    PILOT_INTERVALS,
    PILOT_STEPS,
    Estimate,
    Probe,
    Probes,
    RankRows,
    Shares,
    probe_spec,
    rank_rows,
    rounds,
    slow_ranks,
    step_seconds,
    steps_for,
)
from raybench.spec.documents import to_yaml
from raybench.spec.errors import DONE, FAILED, Ended, ErrorCode, StudyError, UserError
from raybench.spec.run import RunSpec, describe
from raybench.stats.record import Evaluation, Role, RunRecord


def train_probe(
    single_run: SingleRun, spec: RunSpec, name: str, source: str, *, may_fail: bool = False
) -> tuple[list[Evaluation], RunRecord]:
    """Train a probe (a short run that measures speed) to its end.

    Args:
        single_run: Trains runs on reused worker groups.
        spec: Run spec of the probe.
        name: Name of the run.
        source: Name of the variant, for the record.
        may_fail: Whether the probe may fail; otherwise a failure raises StudyError.

    Returns:
        The evaluations and the record of the probe.
    """
    curve: list[Evaluation] = []
    record = single_run.train(spec, name, Role.SCALING, source=source, judge=curve.append)
    single_run.deadline.raise_fault()
    if record.failure is not None and not may_fail:
        problem = (record.message or "").removesuffix(".")
        raise StudyError(f"Probe {name} failed, {record.failure}: {problem}.")
    return curve, record


def time_step(
    single_run: SingleRun,
    spec: RunSpec,
    dataset: Dataset,
    name: str,
    source: str,
    *,
    steps: int,
    may_fail: bool = False,
) -> tuple[float | None, RunRecord]:
    """Measure the step time of a run over `steps` steps, after as many steps of warm-up.

    Returns:
        Seconds per step (None if the probe failed or was stopped), and the record.
    """
    probe = Probes.of(spec).as_it_is
    short = probe_spec(spec, probe, dataset, steps=steps, intervals=PILOT_INTERVALS)
    curve, record = train_probe(single_run, short, name, source, may_fail=may_fail)
    is_whole = record.failure is None and len(curve) == PILOT_INTERVALS
    return step_seconds(curve, spec.global_batch_size) if is_whole else None, record


class ProbeRuns:
    """Probes (short runs) that measure how much of a step is spent on compute, communication, input
    and overhead."""

    NOT_ENOUGH = f"Fewer than {FEWEST_ROUNDS} rounds have ended: there is no verdict."

    def __init__(self, single_run: SingleRun, spec: RunSpec, dataset: Dataset) -> None:
        self.spec, self.probes = spec, Probes.of(spec)
        self.times: dict[Probe, list[float]] = {probe: [] for probe in self.probes.names}
        """Seconds per step of each probe, one value per round."""
        self.ranks: RankRows = {"compute": [], "cores": [], "input": []}
        """Seconds that each rank spends on its own work, from probes without gradient exchange.
        `input` is measured with the data of the run, the others with synthetic data."""
        self._single_run, self._dataset = single_run, dataset
        self._steps: dict[Probe, int] = {}
        self._orders: Iterator[list[Probe]] = rounds(self.probes, seed=spec.seed)
        self._record: RunRecord | None = None

    @property
    def num_rounds(self) -> int:
        """Number of rounds that all probes have finished."""
        return min(map(len, self.times.values()))

    @property
    def is_enough(self) -> bool:
        """Whether there are enough rounds for a verdict."""
        return self.num_rounds >= FEWEST_ROUNDS

    def measure(self, options: DiagnoseOptions, console: Console) -> None:
        """Train all probes in `--repeats` rounds.

        More rounds follow until the largest share of a step is significantly larger than the
        others, up to twice `--repeats` in total. Ctrl-C ends the rounds early.
        """
        say(console, f"{describe(self.spec)}: {len(self.probes.names)} probes per round")
        self.pilot(options.seconds)
        for number in range(2 * options.repeats):
            if self._single_run.deadline.over or (
                number >= options.repeats and self._shares.is_sure
            ):
                break
            self.round(number)
            if self.is_enough:
                say(console, f"round {number + 1}: {self.so_far()}")

    def report(self, store: Store, console: Console) -> None:
        """Write the verdict to the results folder, and print it with the step times, the shares of
        a step and the predicted gains."""
        verdict = self.verdict()
        times = {name: self.times[probe] for probe, name in self.probes.names.items()}
        slow_workers = [vars(rank) for rank in slow_ranks(self.ranks, self.places)]
        document = (
            verdict.document()
            | ({"slow_ranks": slow_workers} if slow_workers else {})
            | {"probes": times}
        )
        store.write_yaml(DIAGNOSIS, document, comment=VERDICT)
        console.print()
        rows = []
        for probe, name in self.probes.names.items():
            step = Estimate.of(np.array(self.times[probe]))
            row = {
                "probe": name.replace("_", " "),
                "exchange": "every step" if probe.exchanges else "never",
                "data": self.spec.dataset.name if probe.reads else "synthetic",
                "batch per worker": probe.batch_size_per_worker,
                "step": milliseconds(step.value),
                "95 % interval": f"{milliseconds(max(step.low, 0.0))} to {milliseconds(step.high)}",
                "samples/s": self._samples(probe) / step.value,
            }
            rows.append(row)
        below = f"median of {self.num_rounds} rounds"
        print_frame(console, pd.DataFrame(rows), "Time of a step", below=below)
        shares = [
            {"part": part, "of a step": share.percent, "95 % interval": share.percents}
            for part, share in verdict.shares.items()
        ]
        sent = f"{verdict.num_bytes:,} bytes of gradients per worker and step are exchanged"
        below = sent if verdict.num_bytes else ""
        print_frame(console, pd.DataFrame(shares), "Where a step's time goes", below=below)
        gains = [
            {
                "change": gain.change,
                "times the samples/s": f"{gain.times:.2f}",
                "90 % interval": f"{gain.low:.2f} to {gain.high:.2f}"
                if gain.low < gain.high
                else "-",
                "workers": f"x {gain.workers:g}",
                "is": "upper bound" if gain.is_limit else "estimate",
            }
            for gain in verdict.gains
        ]
        if gains:
            below = "a larger batch or fewer exchanges may need another learning rate"
            print_frame(console, pd.DataFrame(gains), "Predicted gains", below=below)
        say(console, verdict.sentence)

    def pilot(self, seconds: float) -> None:
        """Determine for each probe how many steps take about `seconds`."""
        for probe, name in self.probes.names.items():
            if self._single_run.deadline.over:
                return
            curve = self._train(probe, f"{name}-pilot", PILOT_STEPS, PILOT_INTERVALS)
            if len(curve) == PILOT_INTERVALS:
                self._steps[probe] = steps_for(seconds, self._step_s(curve, probe))

    def round(self, number: int) -> None:
        """Train every probe once, in a random order, and record the step times."""
        for probe in next(self._orders):
            if self._single_run.deadline.over:
                return
            name = self.probes.names[probe]
            curve = self._train(probe, f"{name}-{number}", self._steps[probe])
            if not self._single_run.deadline.over:
                self.times[probe].append(self._step_s(curve, probe))
                is_same_batch = probe.batch_size_per_worker == self.spec.batch_size_per_worker
                if is_same_batch and not probe.exchanges:
                    for kind, rows in rank_rows(curve, self.spec).items():
                        self.ranks[kind] += rows if (kind == "input") == probe.reads else []

    def so_far(self) -> str:
        """Return the shares of a step according to the rounds so far, as text."""
        shares = self._shares
        shares_text = ", ".join(f"{part} {shares[part].percent}" for part in shares.order)
        return shares_text if shares.is_sure else f"{shares_text} (not sure yet)"

    def verdict(self) -> BottleneckVerdict:
        """Return what limits the speed of the training, including slow workers."""
        number, record = self.num_rounds, self._record
        verdict = find_bottleneck(
            self.spec,
            {probe: seconds[:number] for probe, seconds in self.times.items()},
            num_nodes=max(1, record.num_nodes) if record else 1,
            num_parameters=(record.num_parameters or 0) if record else 0,
        )
        sentences = [rank.sentence for rank in slow_ranks(self.ranks, self.places)]
        return replace(verdict, sentence=" ".join([verdict.sentence, *sentences]))

    @property
    def places(self) -> list[str]:
        """Host and device of each rank."""
        return self._record.places if self._record else []

    @property
    def _shares(self) -> Shares:
        return Shares.of(self.probes, self.times)

    def _samples(self, probe: Probe) -> int:
        """Return the samples per optimizer step, over all workers."""
        return probe.batch_size_per_worker * self.spec.num_workers * self.spec.accumulate

    def _step_s(self, curve: list[Evaluation], probe: Probe) -> float:
        return step_seconds(curve, self._samples(probe))

    def _train(
        self, probe: Probe, name: str, steps: int, intervals: int = INTERVALS
    ) -> list[Evaluation]:
        spec = probe_spec(self.spec, probe, self._dataset, steps=steps, intervals=intervals)
        source = self.probes.names[probe]
        curve, self._record = train_probe(self._single_run, spec, name, source)
        return curve


MIN_STEPS = 20
"""Minimum number of optimizer steps between two evaluations of a probe with `--fastest`."""


class SpeedRuns:
    """Probes (short runs) that find the fastest variant of a run spec with the same learning curve.

    The axes (settings such as framework or compilation) are varied one after another, each starting
    from the fastest variant so far.
    """

    NOT_ENOUGH = "No setting was measured to its end: the fastest is not known."

    def __init__(
        self, single_run: SingleRun, spec: RunSpec, dataset: Dataset, leeway: Leeway
    ) -> None:
        self.spec = spec
        """Run spec of the fastest variant so far."""
        self.found: dict[str, AxisProbes] = {}
        """Results of the probes, keyed by axis."""
        self.left_out: dict[str, str] = {}
        """Reasons why axes or variants were not measured, keyed by their names."""
        self._single_run, self._dataset, self._leeway = single_run, dataset, leeway
        self._steps, self._repeats = PILOT_STEPS, 1
        self._wall_s: list[float] = []
        self._rng = np.random.default_rng(spec.seed)

    @property
    def is_enough(self) -> bool:
        """Whether the variants of at least one axis were measured."""
        return bool(self.found)

    def measure(self, options: DiagnoseOptions, console: Console) -> None:
        """Measure the variants of all axes, one axis after another. Ctrl-C ends this early.

        Raises:
            UserError: No axis has another variant.
        """
        step_s, record = self._probe(self.spec, "pilot", "pilot")
        self._leeway = replace(self._leeway, batch_statistics=bool(record.batch_statistics))
        if all(isinstance(variants_of(axis, self.spec, self._leeway), str) for axis in AXES):
            raise UserError(
                "--fastest: no other setting leaves the learning curve of this run unchanged.",
                ErrorCode.UNSUPPORTED,
            )
        say(console, f"{describe(self.spec)}: measured axis by axis")
        self._repeats = options.repeats
        if step_s is not None:
            self._steps = max(MIN_STEPS, steps_for(options.seconds, step_s))
        for axis in AXES:
            variants = variants_of(axis, self.spec, self._leeway)
            if self._single_run.deadline.over:
                return
            if isinstance(variants, str):
                self._leave_out(console, axis, variants)
                continue
            probes = self._measured(axis, variants, console)
            if probes.step_s[probes.original]:
                self.found[axis], self.spec = probes, variants[probes.chosen]
                say(console, f"{axis}: {probes.chosen}")

    def report(self, store: Store, console: Console) -> None:
        """Write the measurements and the fastest variant (`fastest.yaml`) to the results folder,
        and print the step time of each variant and the total gain."""
        sentence, spec = gains_sentence(self.found), self.spec.complete()
        store.write_yaml(FASTEST, spec, comment=sentence)
        content: dict[str, Any] = {
            "sentence": sentence,
            "spec": spec,
            "axes": {axis: probes.document() for axis, probes in self.found.items()},
            "left_out": self.left_out,
            "steps": self._steps,
            "probes": len(self._wall_s),
            "seconds": sum(self._wall_s),
        }
        store.write_yaml(DIAGNOSIS, content)
        rows = [
            {
                "axis": axis,
                "variant": variant,
                "step": milliseconds(float(np.median(times))),
                "times": f"{probes.gain(variant).value:.2f}",
                "rounds": len(times),
                "is": {probes.chosen: "fastest", probes.original: "original"}.get(variant, ""),
            }
            for axis, probes in self.found.items()
            for variant, times in probes.step_s.items()
        ]
        console.print()
        below = f"{len(self._wall_s)} probes in {sum(self._wall_s):.0f} s"
        title = "Variants with the same learning curve"
        print_frame(console, pd.DataFrame(rows), title, below=below)
        say(console, sentence)

    def _measured(self, axis: str, variants: Mapping[str, RunSpec], console: Console) -> AxisProbes:
        """Measure the variants of an axis in rounds.

        In each round, the variants run in random order. Slow variants drop out after a round.
        """
        original = next(iter(variants))
        probes = AxisProbes(
            original, {name: [] for name in variants}, {name: [] for name in variants}
        )
        for number in range(self._repeats):
            variants_left, times = probes.next_round(), dict[str, float]()
            if len(variants_left) == 1:
                break
            for variant in self._rng.permutation(variants_left).tolist():
                if self._single_run.deadline.over:
                    return probes
                name, may_fail = f"{axis}-{variant}-{number}", variant != original
                step_s, record = self._probe(variants[variant], name, variant, may_fail=may_fail)
                probes.compile_s[variant].append(record.ledger.get("compile", 0.0))
                if record.failure is not None:
                    reason = f"{record.failure}: {record.message}"
                    self._leave_out(console, f"{axis} {variant}", reason)
                    del probes.step_s[variant]
                elif step_s is not None:
                    times[variant] = step_s
            if self._single_run.deadline.over:
                break
            for variant, seconds in times.items():
                probes.step_s[variant].append(seconds)
        return probes

    def _probe(
        self, spec: RunSpec, name: str, source: str, *, may_fail: bool = False
    ) -> tuple[float | None, RunRecord]:
        run, dataset = self._single_run, self._dataset
        result = time_step(run, spec, dataset, name, source, steps=self._steps, may_fail=may_fail)
        self._wall_s.append(result[1].wall_s)
        return result

    def _leave_out(self, console: Console, variant: str, reason: str) -> None:
        self.left_out[variant] = reason
        say(console, f"{variant}: left out, {reason}")


def diagnose(options: DiagnoseOptions, interrupt: Interrupt) -> Ended:
    """Run the `diagnose` command: train the probes, then print and write the verdict.

    For the arguments, see `CommandFrame`. Returns how the command ended.
    """
    frame, spec = CommandFrame(options, interrupt), read_spec(options)
    _check(options, spec)
    name = "fastest" if options.fastest else "diagnose"
    place, spec, dataset, sentences = check_run(options, spec, name)
    _check_data(options, spec, dataset)
    leeway = None
    if options.fastest:
        leeway = leeway_of(options.address, spec, dataset)
    frame.say(*sentences)
    if options.dry_run:
        _print_plan(frame.console, spec, dataset, leeway)
        return frame.planned(sentences, spec.document() | {"results": place})
    with frame.open(place) as opened:
        refuse_other_kind(place, opened.folder, StudyKind.DIAGNOSIS)
        store = opened.begin(resumes=False)
        runs = _measure(options, spec, dataset, leeway, opened)
        is_interrupted = interrupt.is_set
        export(opened.results(), store)  # no page: it would rank the probes as a search's trials
        if runs.is_enough:
            runs.report(store, frame.console)
        else:
            frame.say(runs.NOT_ENOUGH)
        frame.say(f"results: {opened.where}")
    code = DONE if runs.is_enough else FAILED
    return frame.ended(place, code, is_interrupted=is_interrupted, can_resume=False)


FASTEST = "fastest.yaml"
"""Name of the file with the run spec of the fastest variant (`diagnose --fastest`)."""
VERDICT = "Bottleneck found by raybench diagnose; below, seconds per step in each round."


def _check(options: DiagnoseOptions, spec: RunSpec) -> None:
    if spec.num_workers > 1 and not spec.exchange_gradients:
        raise UserError(
            "exchange_gradients: false: diagnose itself measures a training with and without the "
            "exchange of gradients; leave the key out.",
            ErrorCode.UNSUPPORTED,
        )
    if spec.replicas_per_process > 1 and not options.fastest:
        raise UserError(
            "strategy: single_process: diagnose compares a training with one that exchanges no "
            "gradients, which replicas of one process cannot; set strategy: distributed.",
            ErrorCode.UNSUPPORTED,
        )


def _check_data(options: DiagnoseOptions, spec: RunSpec, dataset: Dataset) -> None:
    """Raise UserError if the data do not allow probes.

    A training loop of the user has no dataset. Without `--fastest`, there must also be synthetic
    data of the same kind.
    """
    if dataset is NO_DATA:
        raise UserError(
            f"{spec.workload}: diagnose changes how a Workload is trained; the speed of a "
            "training loop of your own is measured by raybench scale.",
            ErrorCode.UNSUPPORTED,
        )
    if options.fastest:
        return
    kind = ""
    if isinstance(dataset.train.inputs, dict):
        kind = "inputs by name"
    elif dataset.task != "classification":
        kind = dataset.task.replace("_", " ")
    elif dataset.train.dtype.kind == "i":
        kind = "tokens"
    if kind:
        raise UserError(
            f"dataset {spec.dataset.name}: diagnose compares with synthetic data, which exist for "
            f"images and vectors with classes, not for {kind}; measure its speed with "
            "raybench scale.",
            ErrorCode.UNSUPPORTED,
        )


def _print_plan(console: Console, spec: RunSpec, dataset: Dataset, leeway: Leeway | None) -> None:
    console.print(to_yaml(spec.document()), soft_wrap=True)
    if leeway is not None:
        for axis in AXES:
            variants = variants_of(axis, spec, leeway)
            say(
                console, f"{axis}: {variants if isinstance(variants, str) else ', '.join(variants)}"
            )
        return
    for probe, name in Probes.of(spec).names.items():
        data = spec.dataset.name if probe.reads else "synthetic"
        exchange = "gradients exchanged" if probe.exchanges else "no exchange"
        batch = f"batch {probe.batch_size_per_worker} a worker"
        say(console, f"{name}: {exchange}, dataset {data}, {batch}")


def leeway_of(address: str | None, spec: RunSpec, dataset: Dataset) -> Leeway:
    """Return which settings may change without changing the learning curve of a run.

    The result is preliminary: whether the model has batch normalization is known only after the
    first probe.

    Args:
        address: Address of the Ray cluster, as given by the user.
        spec: Run spec of the run.
        dataset: Dataset of the run.
    """
    workload, _ = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    is_here = chosen_address(address) is None
    return Leeway(
        equal_frameworks=isinstance(workload, LayerWorkload),
        batch_statistics=False,
        reads=bool(spec.augment) or dataset.train.is_on_demand,
        fits=local_capacity().fits if is_here else spec.resources.__eq__,
    )


def _measure(
    options: DiagnoseOptions,
    spec: RunSpec,
    dataset: Dataset,
    leeway: Leeway | None,
    opened: OpenStudy,
) -> ProbeRuns | SpeedRuns:
    console, interrupt, store = opened.frame.console, opened.frame.interrupt, opened.store
    with live_session(options.address, interrupt, console) as session:
        check_connected(session, spec, console)
        opened.start_over()
        for name in (DIAGNOSIS, FASTEST):  # the verdict of the deleted records
            (opened.folder / name).unlink(missing_ok=True)
        content = {"objective": spec.objective.model_dump(mode="json"), PROBED: spec.document()}
        store.write_yaml(STUDY_FILE, {"study": content} | with_session({}))
        deadline, lines = Deadline(None, interrupt=interrupt), RunLines(console)
        with single_runs(session, store, deadline, lines, wait_s=options.wait) as single_run:
            runs: ProbeRuns | SpeedRuns = ProbeRuns(single_run, spec, dataset)
            if leeway is not None:
                leeway = replace(leeway, fits=session.capacity.fits)
                runs = SpeedRuns(single_run, spec, dataset, leeway)
            runs.measure(options, console)
    return runs
