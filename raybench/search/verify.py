"""Placement checks after a search: run the placements that are predicted to win.

The search measures a trial on one placement (framework, workers, batch per worker, ...) and
predicts its time on others. A prediction is never reported as a result, so the placements predicted
to win are run once before the confirmation. On screen, these runs are called speed checks.
"""

from dataclasses import dataclass

from raybench.results.ranking import gpu_model_of, gpu_models, ranked
from raybench.results.study import Study, load
from raybench.runs.lifecycle import SingleRun
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.factorisation import SPEED_KEYS, speed_values, with_placement
from raybench.search.placement import Placer
from raybench.spec.run import RunSpec
from raybench.spec.study import NUM_FASTEST_CHECKED
from raybench.stats.record import Prediction, Role, State

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
    runs = ranked(results.trials)
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

    These are

    - for each of the NUM_FASTEST_CHECKED fastest configurations, its fastest placement,
    - for each GPU model, the placement with the fewest worker-seconds,
    - for each framework and GPU model, the fastest placement,

    without the placements that the search has measured.

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


def verify(placer: Placer | None, single_run: SingleRun, confirm_budget: ConfirmBudget) -> None:
    """Record the predicted times of all placements, and run those predicted to win, one at a time.

    Without a factorized space (`placer` is None), there is nothing to check.
    """
    store, deadline = single_run.store, single_run.deadline
    store.check()
    # If time is short, placement checks and confirmation share what remains.
    confirming_s = confirm_budget.confirming_s()
    if placer is not None:
        with deadline.reserving(min(confirming_s, KEPT_FOR_CONFIRM * deadline.left_s)):
            _check_placements(load(store.folder), placer, single_run)
            store.check()


def _check_placements(results: Study, placer: Placer, single_run: SingleRun) -> None:
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
