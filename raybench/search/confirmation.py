"""Placement checks and the confirmation, which follow the search.

The search measures a trial on one placement (framework, workers, batch per worker, ...) and
predicts its time on others. A prediction is never reported as a result, so the placements predicted
to win are run once. On screen, these runs are called speed checks.

Then the best trials are repeated with new seeds (the race), and the winners run alone. The reported
times come from the solo runs, which have the machine to themselves and use seeds that did not serve
to choose the winner. The times of the race are not reported, because its runs share the machine and
the choice of the winner biases them.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from raybench.results.ranking import (
    as_replicate,
    gpu_model_of,
    gpu_models,
    noise_of,
    ranked_runs,
    repeated,
)
from raybench.results.records import Records, read_records
from raybench.results.study import Study, load
from raybench.results.verdict import find_verdicts
from raybench.runs.lifecycle import SingleRun, run_in_parallel
from raybench.search.confirm_budget import MOST_FRESH, ConfirmBudget, Cost
from raybench.search.factorisation import SPEED_KEYS, speed_values, with_placement
from raybench.search.placement import Placer
from raybench.search.race import Race, Races, cap_of, in_turns
from raybench.search.resolve import DECIDED
from raybench.spec.objective import TIME, StopReason
from raybench.spec.run import RunSpec
from raybench.spec.study import MOST_RACE_RUNS, MOST_SOLO_ROUNDS, NUM_FASTEST_CHECKED, StudySpec
from raybench.spec.text import counted
from raybench.stats.record import Evaluation, Prediction, Purpose, Role, RunRecord, State
from raybench.stats.replicates import Replicate
from raybench.stats.standing import (
    Axis,
    Candidate,
    RaceRun,
    Stages,
    first_trial,
    replicate_of,
    runs_to_decide,
    stages,
)

KEPT_FOR_CONFIRM = 0.75
"""Largest fraction of the remaining time budget that is reserved for the confirmation while
placement checks run."""


@dataclass(frozen=True)
class PlacementOption:
    """A placement (framework, workers, ...) on which a trial that reached the target could run."""

    prediction: Prediction
    spec: RunSpec
    is_measured: bool
    """Whether the search ran this placement."""

    @property
    def name(self) -> str:
        """Name of the run that checks the placement.

        It consists of the trial, the framework, the worker count, and other placement keys that are
        set.
        """
        short = self.spec.framework.replace("tensorflow", "tf")
        parts = [self.spec.accelerator_type or "", self.spec.compile.replace("none", "")]
        parts += [f"x{self.spec.accumulate}" if self.spec.accumulate > 1 else ""]
        parts += [f"prefetch{self.spec.prefetch}" if self.spec.prefetch else ""]
        where = f"{self.prediction.trial}.{short}{self.spec.num_workers}"
        return ".".join([where, *filter(None, parts)])


def placement_options(results: Study, placer: Placer) -> list[PlacementOption]:
    """Return all placements of all trials that reached the target, sorted by time to target.

    The time on a trial's own placement was measured. The time on another placement is the measured
    time, multiplied by the ratio of predicted step times. Predictions of an earlier session are
    kept, so that a resumed study has the same placement checks. Only trials on the GPU model of the
    best trial are included.
    """
    recorded = {
        (row["trial"], *(row[key] for key in SPEED_KEYS)): row["time_to_target_s"]
        for row in results.predictions.to_dict("records")
    }
    runs = ranked_runs(results.trials)
    specs = [results.specs[trial] for trial in runs["trial"]]  # the spec names its GPU model
    searched = [spec for spec in specs if spec.accelerator_type is not None]
    runs = runs[
        gpu_model_of(runs).isin(gpu_models(results.trials)[:1])
    ]  # measured times apply to one GPU model only
    searched += [results.specs[trial] for trial in runs["trial"]]
    options = []
    for trial in runs["trial"]:
        record = results.runs[trial]
        if record.role != Role.TRIAL or record.time_to_target_s is None:
            continue
        for placement, ratio in placer.ratios(record.spec).items():
            speed = speed_values(placement)
            expected = recorded.get((trial, *speed.values()), record.time_to_target_s * ratio)
            spec = with_placement(record.spec, placement)
            prediction = Prediction(trial=trial, time_to_target_s=expected, **speed)
            options.append(PlacementOption(prediction, spec, spec in searched))
    return sorted(options, key=lambda option: option.prediction.time_to_target_s)


def choose_checks(options: list[PlacementOption]) -> list[PlacementOption]:
    """Return the placements to check.

    Unless the search has measured them, these are:

    - for each of the NUM_FASTEST_CHECKED fastest configurations, its fastest placement,
    - for each GPU model, the placement with the fewest worker-seconds,
    - for each framework and GPU model, the fastest placement.

    Args:
        options: All placements, fastest first.
    """
    fastest: dict[str, PlacementOption] = {}
    for option in options:
        fastest.setdefault(option.prediction.trial, option)
    chosen = list(fastest.values())[:NUM_FASTEST_CHECKED]
    # Equal worker-seconds are decided by fewer workers. GPU models differ in price, so each has a
    # winner.
    costs = [(option.prediction.worker_seconds, option.spec.num_workers) for option in options]
    for model in sorted({option.spec.accelerator_type for option in options}, key=str):
        indices = [i for i, option in enumerate(options) if option.spec.accelerator_type == model]
        chosen.append(options[min(indices, key=costs.__getitem__)])
    machines = [(option.spec.framework, option.spec.accelerator_type) for option in options]
    chosen += [options[machines.index(machine)] for machine in sorted(set(machines), key=str)]
    return [
        option
        for option in {option.name: option for option in chosen}.values()
        if not option.is_measured
    ]


def check_placements(
    placer: Placer | None, single_run: SingleRun, confirm_budget: ConfirmBudget
) -> None:
    """Record the predicted times of all placements, and run those predicted to win, one at a time.

    Without a factorized space (`placer` is None), there is nothing to check.
    """
    store, deadline = single_run.store, single_run.deadline
    store.check()
    # If time is short, placement checks and confirmation share what remains.
    confirming_s = confirm_budget.confirming_s()
    if placer is not None:
        with deadline.reserving(min(confirming_s, KEPT_FOR_CONFIRM * deadline.left_s)):
            _run_checks(load(store.folder), placer, single_run)
            store.check()


def _run_checks(results: Study, placer: Placer, single_run: SingleRun) -> None:
    options = placement_options(results, placer)
    columns = list(results.predictions.columns)
    recorded = {tuple(row) for row in results.predictions.itertuples(index=False)}
    for option in options:
        row = tuple(vars(option.prediction)[column] for column in columns)
        if not option.is_measured and row not in recorded:
            single_run.append(option.prediction.line())
    done = {name for name, record in results.runs.items() if record.state != State.STOPPED}
    fresh = [option for option in choose_checks(options) if option.name not in done]
    if not fresh or single_run.deadline.over:
        return
    progress = single_run.progress
    sources = [results.runs[option.prediction.trial] for option in fresh]
    expect_s = sum(run.wall_s - run.ledger["queue"] for run in sources)
    after_s = progress.state.after_s  # the same phases are to come as after the search
    progress.begin(Role.PLACEMENT_CHECK, len(fresh), expect_s=expect_s, after_s=after_s)
    for option in fresh:
        if single_run.deadline.over:
            return
        single_run.train(
            option.spec, option.name, Role.PLACEMENT_CHECK, source=option.prediction.trial
        )


RACE_SEEDS = 3000
"""Offset between the seed of the search and the seeds of race runs."""


@dataclass
class LiveRace:
    """Trains the repeated runs of two races: one race finds the fastest candidate, the other the
    cheapest."""

    budget: ConfirmBudget
    single_run: SingleRun
    records: Records
    """Records of earlier sessions."""
    slots: int
    """Largest number of concurrent runs; fewer run at once if they need many workers."""
    is_cut: bool = False
    """Whether runs were still due when the race ended."""
    out: list[str] = field(default_factory=list)
    """Names of the candidates that left the race because their runs had no usable result."""
    _learned: dict[tuple[str, int], Replicate] = field(default_factory=dict)
    _alone: dict[str, list[Replicate]] = field(default_factory=dict)
    """Results of solo runs of earlier sessions, keyed by candidate. They may overrule the race."""
    _learning: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._is_timed = self.budget.study.objective.kind == TIME
        candidates = self.budget.candidates()
        self._cold = first_trial(self.records.runs.values())
        self._costs = {cost.trial: cost for cost in (*candidates.fastest, *candidates.cheapest)}
        for record in self.records.runs.values():
            if record.role not in (Role.RACE, Role.CONFIRM) or record.source not in self._costs:
                continue
            if not self._is_usable(record):
                continue
            repeat = self._repeat(record, self.records.curves.get(record.trial, []))
            if record.role == Role.CONFIRM:
                self._alone.setdefault(record.source, []).append(repeat)
            else:
                number = int(record.trial.removeprefix(f"{record.source}-race"))
                self._learned[record.source, number] = repeat

    def run(self, stages: Stages, *, after_s: float) -> None:
        """Run the races until they end or the deadline is reached.

        A run without a usable result is repeated: its workers were lost, or were distributed over
        the nodes in another way than in the search. If none of the runs that are due gets a usable
        result, their candidates leave the race.

        Args:
            stages: (candidates, runs of each) per stage.
            after_s: Expected seconds of the phases after the race, for the progress display.
        """
        races = self._races(stages)
        number = sum(count * runs for count, runs in stages)
        num_runs = max(self.budget.race_runs(number), len(self._learned))
        self._begin(num_runs, self.budget.race_s(number), after_s)
        while (due := races.due()) and not self.single_run.deadline.over:
            # The two races may have fewer runs in common than expected.
            if len(self._learned) + len(due) > num_runs:
                num_runs = len(self._learned) + len(due)
                self._begin(num_runs, self.budget.race_s(number), after_s)
            if not self._run(due, races):
                races = self._races(stages)
        self.is_cut = bool(due)

    def run_more(self, number: int) -> int:
        """Run up to `number` more runs of candidates that are still tied.

        Runs that find the fastest candidate come first, then runs that find the cheapest.

        Returns:
            Number of runs that were run.
        """
        num_run, due = 0, list[RaceRun]()
        while num_run < number and not self.single_run.deadline.over:
            due = self._next_more(min(number - num_run, self.slots))
            if not due:
                return num_run
            self._begin(len(self._learned) + number - num_run)
            self._run(due, self._races(()))
            num_run += len(due)
        self.is_cut = num_run < number or any(
            (run.name, run.round) not in self._learned for run in due
        )
        return num_run

    def _next_more(self, number: int) -> list[RaceRun]:
        """Return up to `number` further runs that may resolve a tie; [] if nothing is tied."""
        for axis, candidates in self.candidates().items():
            if due := runs_to_decide(
                candidates, self._learned, number, axis=axis, alone=self._alone
            ):
                return due
        return []

    def _races(self, stages: Stages) -> Races:
        """Return the races of the remaining candidates, with all results so far."""
        races = Races(
            Race(candidates, stages, axis=axis) for axis, candidates in self.candidates().items()
        )
        for (name, number), learned in self._learned.items():
            races.learn(RaceRun(name, number), learned)
        return races

    def candidates(self) -> dict[Axis, list[Candidate]]:
        """Return the remaining candidates by axis, best first."""
        candidates = self.budget.candidates()
        fields: dict[Axis, list[Cost]] = {"seconds": candidates.fastest}
        if self._is_timed:
            fields["worker_seconds"] = candidates.cheapest
        return {
            axis: [self._candidate(cost) for cost in costs if cost.trial not in self.out]
            for axis, costs in fields.items()
        }

    def _candidate(self, cost: Cost) -> Candidate:
        record, curve = self.records.runs[cost.trial], self.records.curves.get(cost.trial, [])
        counts = cost.trial != self._cold and record.counts_for(Purpose.COMPARISON)
        search_run = self._repeat(record, curve) if counts else None
        is_billed = self.budget.study.price is not None and self._is_timed
        cost_per_s = cost.worker_seconds / cost.rank if is_billed else cost.spec.num_workers
        return Candidate(cost.trial, search_run, cost_per_s)

    def _begin(self, num_runs: int, race_s: float | None = None, after_s: float = 0.0) -> None:
        """Start the progress display of the race.

        `num_runs` is the largest number of runs, including those of earlier sessions. `race_s` and
        `after_s` are the expected seconds of the whole race (None if unknown) and of later phases.
        """
        done, progress = len(self._learned), self.single_run.progress
        left_s = None if race_s is None else race_s * (num_runs - done) / max(num_runs, 1)
        progress.begin(Role.RACE, num_runs, num_done=done, expect_s=left_s, after_s=after_s)

    def _run(self, due: list[RaceRun], races: Races) -> bool:
        """Train the runs that are due.

        If none of them gets a usable result, their candidates leave the race and the result is
        False.
        """
        num_before = len(self._learned)
        specs = {run.name: self._costs[run.name].spec for run in due}
        jobs = [partial(self._train, run, races) for run in in_turns(due, specs)]
        run_in_parallel(jobs, slots=self.slots, deadline=self.single_run.deadline)
        if len(self._learned) > num_before or self.single_run.deadline.over:
            return True
        self.out += sorted({run.name for run in due})
        return False

    def _train(self, run: RaceRun, races: Races) -> None:
        seed = (self.budget.study.search.seed + RACE_SEEDS + run.round) % 2**32
        spec = self._costs[run.name].spec.model_copy(update={"seed": seed})
        metric, target = spec.objective.judged_by, spec.objective.target
        curve: list[Evaluation] = []

        def judge(evaluation: Evaluation) -> StopReason | None:
            # A run resumed from a checkpoint repeats some evaluations.
            curve[:] = [point for point in curve if point.index < evaluation.index] + [evaluation]
            if target is not None and metric.reaches(evaluation.value, target):
                return None  # more evaluations at the target may be needed (`hold`)
            with self._learning:
                cap_s = races.cap_s(run)
            return StopReason.CAP if cap_s is not None and evaluation.train_s > cap_s else None

        name = f"{run.name}-race{run.round}"
        record = self.single_run.train(spec, name, Role.RACE, source=run.name, judge=judge)
        if self._is_usable(record):
            with self._learning:
                repeat = self._repeat(record, curve)
                self._learned[run.name, run.round] = repeat
                races.learn(run, repeat)

    def _is_usable(self, record: RunRecord) -> bool:
        """Return whether the result of a run is usable: the run was not cut short, and its machines
        were like those of the trial."""
        return record.counts_for(Purpose.COMPARISON) and self.budget.is_comparable(record)

    def _repeat(self, record: RunRecord, curve: list[Evaluation]) -> Replicate:
        return replicate_of(record, curve, baseline_value=self.budget.baseline_value)


SEEDS_FROM = 1000
"""Offset between the seed of the search and the seeds of solo runs."""


@dataclass(frozen=True)
class Confirmation:
    """Runs the confirmation: a race of repeated runs, then solo runs of the winners."""

    study: StudySpec
    single_run: SingleRun
    slots: int
    """Largest number of concurrent runs in the race."""
    at_once: Callable[[RunSpec], int]
    """Function that returns how many runs with a given spec can run at the same time."""
    baseline_value: float | None
    """Metric value of a constant prediction, used if the objective does not set it; None if
    unknown."""
    note: Callable[[str], None]
    """Function that adds a note for the user to the results."""

    def run(self) -> None:
        """Run the unfinished part of the race and of the solo runs, within the time budget."""
        records, deadline = self._records(), self.single_run.deadline
        budget = self._budget(records)
        if not budget.winners():
            return
        finished = [*_comparable_runs(records, Role.RACE), *_comparable_runs(records, Role.CONFIRM)]
        plan = budget.plan(finished, deadline.left_s)
        if deadline.over or not plan.fresh:
            if deadline.reason() != StopReason.INTERRUPTED:
                self._note_time("was too short to confirm the result with new seeds")
            return
        num_runs, num_wanted = (
            min(budget.race_runs(n), n) for n in (plan.race, self.study.confirm.race)
        )
        if num_runs < num_wanted:
            some = f"{num_runs} of" if num_runs else "none of"
            self._note_time(f"left time for {some} the {num_wanted} confirmation runs")
        race = LiveRace(budget, self.single_run, records, self.slots)
        self._reserve(budget.fresh_s(plan.fresh))
        race.run(stages(plan.race), after_s=budget.fresh_s(plan.fresh))
        self._run_winners(race)

    def run_more(self, number: int) -> bool:
        """Run at most `number` more runs of tied candidates, then solo runs of the winners.

        The number of candidates is chosen as for one race of all runs: those already done plus
        `number`.

        Returns:
            Whether all of these runs were completed.
        """
        records = self._records()
        budget = self._budget(records, least_race=min(num_raced(records) + number, MOST_RACE_RUNS))
        race = LiveRace(budget, self.single_run, records, self.slots)
        self._reserve(budget.fresh_s(self.study.confirm.fresh))
        if number and not race.run_more(number) and not self.single_run.deadline.over:
            self.single_run.progress.say(DECIDED)
        self._run_winners(race)
        return not race.is_cut and not self.single_run.deadline.over

    def _reserve(self, seconds: float) -> None:
        """Reserve `seconds` for the solo runs, but at most the fraction MOST_FRESH of the remaining
        time."""
        deadline = self.single_run.deadline
        deadline.reserve(min(seconds, MOST_FRESH * deadline.left_s))

    def _run_winners(self, race: LiveRace) -> None:
        """Run the solo runs of the winners after the race."""
        deadline = self.single_run.deadline
        if race.is_cut and deadline.reason() == StopReason.TIME_BUDGET:
            self._note_time("ended the confirmation runs early")
        deadline.reserve(0.0)
        for trial in race.out:
            self.note(
                f"Trial {trial} dropped out of the confirmation: its workers were lost, or were "
                "distributed over the nodes in another way than in the search."
            )
        turns = 0
        while (
            not deadline.over and turns < MOST_SOLO_ROUNDS and self._run_alone(is_first=turns == 0)
        ):
            turns += 1

    def _run_alone(self, *, is_first: bool) -> bool:
        """Run as many solo runs of the current winners as time allows, one at a time; return
        whether any run was started.

        Each run is also evaluated on the test split. If the results change the winner, the next
        call runs the new winner. If time is short, the first call (`is_first`) notes it.
        """
        single_run = self.single_run
        single_run.store.check()
        records, (winners, caps_s) = self._records(), self._winners()
        if not winners:
            return False  # no candidate reached the target in a repeated run
        finished = [run for run in _comparable_runs(records, Role.CONFIRM) if run.source in winners]
        left_s = single_run.deadline.left_s
        budget = self._budget(records)
        count, times = budget.num_solo_runs(winners, finished, left_s)
        if is_first and (count < len(winners) or times < self.study.confirm.fresh):
            runs = f"{times} of the {self.study.confirm.fresh} runs of each winner alone"
            if count < len(winners):
                runs = f"{counted(times, 'run')} alone of {count} of the {len(winners)} winners"
            self._note_time(f"left time for {runs}" if count else "left no time for runs alone")
        done = {run.trial for run in finished}
        # Winners A, B, C run in the order ABCABC.
        due = [(trial, number) for number in range(times) for trial in winners[:count]]
        due = [(trial, number) for trial, number in due if f"{trial}-confirm{number}" not in done]
        if not due:
            return False
        run_s = budget.fresh_s(1) / max(len(budget.winners()), 1)
        single_run.progress.begin(Role.CONFIRM, len(due), expect_s=len(due) * run_s)
        for trial, number in due:
            if single_run.deadline.over:
                break
            seed = (self.study.search.seed + SEEDS_FROM + number) % 2**32
            single_run.train(
                records.runs[trial].spec.model_copy(update={"seed": seed}),
                f"{trial}-confirm{number}",
                Role.CONFIRM,
                source=trial,
                test=True,
                cap_s=caps_s.get(trial, math.inf),
            )
        return True

    def _winners(self) -> tuple[list[str], dict[str, float]]:
        """Return the winners according to the results so far, and a time limit for each.

        Returns:
            - Names of the fastest and the cheapest trial, and of the fastest trial on each further
              GPU model.
            - Limit in training seconds, keyed by trial. A solo run that the time budget ends after
              this limit counts as a miss, because leaving out slow runs would bias the reported
              time.
        """
        winners: list[str] = []
        results = load(self.single_run.store.folder)
        for verdict in find_verdicts(results, untested=True).values():
            winners += [verdict.fastest] if winners else [verdict.fastest, verdict.cheapest]
        if not results.is_timed:
            return list(dict.fromkeys(winners)), {}
        repeats, caps_s = repeated(results), dict[str, float]()
        noise = noise_of(repeats, results)
        for trial in winners:
            runs = repeats[trial].chosen if trial in repeats else [as_replicate(results, trial)]
            caps_s[trial] = cap_of(runs, noise)
        return list(caps_s), caps_s

    def _records(self) -> Records:
        return read_records(self.single_run.store.folder)

    def _budget(self, records: Records, *, least_race: int = 0) -> ConfirmBudget:
        budget = ConfirmBudget(
            self.study,
            at_once=self.at_once,
            baseline_value=self.baseline_value,
            least_race=least_race,
        )
        budget.learn(records.runs.values(), records.curves)
        return budget

    def _note_time(self, what: str) -> None:
        self.note(f"The time budget of {self.single_run.deadline.time_budget_s:g} s {what}.")


def num_raced(records: Records) -> int:
    """Return the number of race runs that count in comparisons."""
    return len(_comparable_runs(records, Role.RACE))


def _comparable_runs(records: Records, role: Role) -> list[RunRecord]:
    """Return the records of a role that count in comparisons."""
    return [
        run
        for run in records.runs.values()
        if run.role == role and run.counts_for(Purpose.COMPARISON)
    ]
