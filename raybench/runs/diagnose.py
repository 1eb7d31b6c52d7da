"""One `raybench diagnose`, from its arguments to the verdict."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from rich.console import Console

from raybench.cluster.run_client import run_once
from raybench.cluster.signals import Interrupt
from raybench.data.dataset import NO_DATA, Dataset
from raybench.report.console import make_console, say
from raybench.report.export import export
from raybench.report.tables import print_frame
from raybench.results.place import shown
from raybench.results.storage import open_storage
from raybench.results.store import DIAGNOSIS, Store, keep_error
from raybench.results.study import load
from raybench.runs.deadline import Deadline
from raybench.runs.options import DiagnoseOptions
from raybench.runs.train import (
    check_connected,
    check_run,
    read_spec,
    refuse_other,
    write_study,
)
from raybench.runs.wait_watch import Waits, live_session
from raybench.scaling.bottleneck import Verdict, judge, milliseconds
from raybench.scaling.shares import (
    FEWEST_ROUNDS,
    PILOT_INTERVALS,
    PILOT_STEPS,
    Estimate,
    Probe,
    Probes,
    Shares,
    SlowRank,
    moves,
    probe_spec,
    rounds,
    slow_ranks,
    step_seconds,
    steps_for,
    whole_rounds,
)
from raybench.spec.documents import to_yaml
from raybench.spec.errors import DONE, FAILED, INTERRUPTED, Ended, StudyError, UserError
from raybench.spec.run import RunSpec, describe
from raybench.stats.record import Evaluation, RunRecord


class ProbeRuns:
    """Trains probes one at a time and keeps the seconds of their steps."""

    def __init__(
        self,
        pool: object,
        spec: RunSpec,
        dataset: Dataset,
        store: Store,
        waits: Waits,
        deadline: Deadline,
    ) -> None:
        self.spec, self.probes = spec, Probes.of(spec)
        self.times: dict[Probe, list[float]] = {probe: [] for probe in self.probes.names}
        """Seconds of a step: one of each probe for each round."""
        self.rank_s: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
        """Of the probes without exchange, with the run's own data and without: the seconds of each
        rank in every interval."""
        self._pool, self._dataset, self._store = pool, dataset, store
        self._waits, self._deadline = waits, deadline
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
            if self._deadline.over:
                return
            curve = self._train(
                probe, f"{name}-pilot", steps=PILOT_STEPS, intervals=PILOT_INTERVALS
            )
            if len(curve) == PILOT_INTERVALS:
                self._steps[probe] = steps_for(seconds, self._step_s(curve, probe))

    def round(self, number: int) -> None:
        """Train every probe once, in the order of this round."""
        for probe in next(self._orders):
            if self._deadline.over:
                return
            name = self.probes.names[probe]
            curve = self._train(probe, f"{name}-{number}", steps=self._steps[probe])
            if not self._deadline.over:
                self.times[probe].append(self._step_s(curve, probe))
                of_batch = probe.batch_size_per_worker == self.spec.batch_size_per_worker
                if of_batch and not probe.exchanges:
                    self.rank_s[probe.reads] += [one.rank_s for one in curve[1:] if one.rank_s]

    def so_far(self) -> str:
        """Return the shares after the rounds so far, in words."""
        shares = self._shares
        found = ", ".join(f"{part} {shares[part].percent}" for part in shares.order)
        return found if shares.is_sure else f"{found} (not sure yet)"

    def verdict(self) -> Verdict:
        """Return what bounds the training, and which worker all others wait for."""
        number = self.num_rounds
        found = judge(
            self.spec,
            {probe: seconds[:number] for probe, seconds in self.times.items()},
            num_nodes=self.num_nodes,
            num_parameters=self.num_parameters,
        )
        return replace(found, sentence=" ".join([found.sentence, *self._slow_sentences()]))

    @property
    def slow(self) -> list[SlowRank]:
        """The workers that stay slower than the others."""
        alone, reading = (np.array(self.rank_s[reads]) for reads in (False, True))
        record = self._record
        places = zip(record.hosts, record.devices, strict=True) if record else ()
        return slow_ranks(alone, reading, [f"host {host}, {device}" for host, device in places])

    def _slow_sentences(self) -> list[str]:
        if slow := self.slow:
            return [one.sentence for one in slow]
        if (times := moves(np.array(self.rank_s[False]))) is None:
            return []
        return [
            f"The slowest worker takes {times:.2g} times as long as the others, another one each "
            "time, as where other processes use the cores."
        ]

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
            stopped_by=self._deadline.reason,
            on_error=lambda *error: keep_error(self._store, *error),
        )
        self._store.append(record.line())
        self._deadline.raise_fault(of=record)
        if record.failure is not None:
            raise StudyError(f"Probe {name} failed, {record.failure}: {record.message}.")
        self._record = record
        return curve


def verdict_document(verdict: Verdict, runs: ProbeRuns) -> dict[str, object]:
    """Return what `diagnosis.yaml` holds: the verdict, and what it was read from."""
    times = {name: runs.times[probe] for probe, name in runs.probes.names.items()}
    slow = [vars(one) for one in runs.slow]
    return verdict.document() | ({"slow_ranks": slow} if slow else {}) | {"probes": times}


def print_verdict(console: Console, verdict: Verdict, runs: ProbeRuns) -> None:
    """Print the probes' times, the shares, what changes would bring, and the sentence."""
    console.print()
    times = [
        {
            "probe": name.replace("_", " "),
            "exchange": "every step" if probe.exchanges else "never",
            "data": runs.spec.dataset.name if probe.reads else "synthetic",
            "batch per worker": probe.batch_size_per_worker,
            "step": milliseconds(float(np.median(runs.times[probe]))),
            "19 of 20 in": _range(runs.times[probe]),
            "samples/s": _rate(runs, probe),
        }
        for probe, name in runs.probes.names.items()
    ]
    rounds = f"{runs.num_rounds} rounds in turns; median over rounds"
    print_frame(console, pd.DataFrame(times), "Seconds of a step", below=rounds)
    shares = [
        {"part": part, "of a step": share.percent, "19 of 20 in": share.percents}
        for part, share in verdict.shares.items()
    ]
    below = ""
    if verdict.num_bytes:
        below = f"{verdict.num_bytes:,} bytes of gradients a worker exchanges in a step"
    print_frame(console, pd.DataFrame(shares), "Where a step's time goes", below=below)
    if verdict.gains:
        gains = [
            {
                "change": gain.change,
                "times the samples/s": f"{gain.times:.2f}",
                "9 of 10 in": f"{gain.low:.2f} to {gain.high:.2f}" if gain.low < gain.high else "-",
                "workers": f"x {gain.workers:g}",
                "is": "the most" if gain.is_limit else "likely",
            }
            for gain in verdict.gains
        ]
        below = "a larger batch or fewer exchanges may need another learning rate"
        print_frame(console, pd.DataFrame(gains), "What it would bring, predicted", below=below)
    say(console, verdict.sentence)


def _rate(runs: ProbeRuns, probe: Probe) -> float:
    passes = runs.spec.num_workers * runs.spec.accumulate
    return probe.batch_size_per_worker * passes / float(np.median(runs.times[probe]))


def _range(times: list[float]) -> str:
    found = Estimate.of(np.array(times))
    return f"{milliseconds(max(found.low, 0.0))} to {milliseconds(found.high)}"


MARK = "diagnosis"


def diagnose(options: DiagnoseOptions, interrupt: Interrupt) -> Ended:
    """Train the probes, print and keep the verdict; return how it ended."""
    spec, console = read_spec(options), make_console(file=sys.stdout)
    _check(options, spec)
    place, spec, dataset, words = check_run(options, spec, "diagnose")
    _check_data(spec, dataset)
    for sentence in words:
        say(console, sentence)
    if options.dry_run:
        _print_plan(console, spec, dataset)
        plan = spec.document() | {"results": place}
        return Ended(DONE, answer=words, details={"plan": plan})
    with open_storage(place, warn=partial(say, console)) as storage:
        folder = storage.folder
        refuse_other(place, folder, MARK)
        with Store(folder, storage.check) as store:
            interrupt.defer()
            runs = _measure(options, spec, dataset, store, console, interrupt)
            store.check()
            export(load(folder), store)
            if runs.num_rounds < FEWEST_ROUNDS:
                say(console, f"Interrupted before {FEWEST_ROUNDS} rounds: there is no verdict.")
            else:
                verdict = runs.verdict()
                store.write_yaml(DIAGNOSIS, verdict_document(verdict, runs), comment=VERDICT)
                print_verdict(console, verdict, runs)
        say(console, f"results: {shown(storage.place, folder)}")
    if runs.num_rounds < FEWEST_ROUNDS:
        return Ended(INTERRUPTED if interrupt.is_set else FAILED, place)
    return Ended(INTERRUPTED if interrupt.is_set else DONE, place)


VERDICT = "What bounds the training, by raybench diagnose; seconds of a step of each round below."


def _check(options: DiagnoseOptions, spec: RunSpec) -> None:
    if spec.num_workers > 1 and not spec.exchange_gradients:
        raise UserError(
            "exchange_gradients: false: diagnose itself measures a training with and without the "
            "exchange of gradients; leave the key out."
        )
    if spec.replicas_per_process > 1:
        raise UserError(
            "strategy: single_process: diagnose compares a training with one that exchanges no "
            "gradients, which replicas of one process cannot; set strategy: distributed."
        )
    if options.repeats < FEWEST_ROUNDS:
        raise UserError(
            f"--repeats {options.repeats}: fewer than {FEWEST_ROUNDS} rounds show no spread; ask "
            f"for {FEWEST_ROUNDS} or more."
        )
    if not 0.01 <= options.seconds <= 3600:
        raise UserError(f"--seconds {options.seconds:g}: must be from 0.01 to 3600.")


def _check_data(spec: RunSpec, dataset: Dataset) -> None:
    """Raise UserError for data of which there are no synthetic ones to compare with."""
    if dataset is NO_DATA:
        raise UserError(
            f"{spec.workload}: diagnose changes data and exchange of a Workload; the speed of a "
            "training loop of your own is measured by python -m raybench.scale."
        )
    one_array = not isinstance(dataset.train.inputs, dict)
    if dataset.task != "classification" or not one_array or dataset.train.dtype.kind == "i":
        what = dataset.task.replace("_", " ") if one_array else "inputs by name"
        if one_array and dataset.task == "classification":
            what = "tokens"
        raise UserError(
            f"dataset {spec.dataset.name}: diagnose compares with synthetic data, which there are "
            f"of images and vectors with classes, not of {what}; measure its speed with "
            "python -m raybench.scale."
        )


def _print_plan(console: Console, spec: RunSpec, dataset: Dataset) -> None:
    console.print(to_yaml(spec.document()), soft_wrap=True)
    names = Probes.of(spec).names
    for probe, name in names.items():
        data = probe_spec(spec, probe, dataset, steps=1).dataset
        exchange = "gradients exchanged" if probe.exchanges else "no exchange"
        say(
            console,
            f"{name}: {exchange}, dataset {data.name}, batch {probe.batch_size_per_worker} a "
            "worker",
        )


def _measure(
    options: DiagnoseOptions,
    spec: RunSpec,
    dataset: Dataset,
    store: Store,
    console: Console,
    interrupt: Interrupt,
) -> ProbeRuns:
    with live_session(options.address, interrupt, console) as session:
        check_connected(session, spec, console)
        store.clear()
        content = {"objective": spec.objective.model_dump(mode="json"), MARK: spec.document()}
        write_study(store, content)
        say(console, f"{describe(spec)}: {len(Probes.of(spec).names)} probes in turns")
        deadline = Deadline(None, interrupt=interrupt)
        with Waits(session, console, deadline, options.wait) as waits:
            runs = ProbeRuns(session.pool, spec, dataset, store, waits, deadline)
            runs.pilot(options.seconds)
            for number in range(2 * options.repeats):
                if interrupt.is_set or (number >= options.repeats and runs.is_sure):
                    break
                runs.round(number)
                if runs.num_rounds >= FEWEST_ROUNDS:
                    say(console, f"round {number + 1}: {runs.so_far()}")
    return runs
