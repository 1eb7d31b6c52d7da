"""Placement checks after a search ("speed checks" on screen): run placements predicted to win.

The search measures a trial on one placement (framework, workers, batch per worker, ...) and
predicts its time on others. A prediction is never a result, so those predicted to win are run once
before the confirmation.
"""

from dataclasses import dataclass

from raybench.results.ranking import gpu_model_of, gpu_models, ranked
from raybench.results.study import Study, load
from raybench.runs.lifecycle import SingleRun
from raybench.search.confirm_budget import ConfirmBudget
from raybench.search.factorisation import SPEED_KEYS, Factors, placed, speed_values
from raybench.search.placement import Placer
from raybench.spec.run import RunSpec
from raybench.stats.record import Prediction

KEPT_FOR_CONFIRM = 0.75
"""Smallest fraction of the remaining time budget that placement checks leave for the
confirmation."""


NUM_FASTEST = 3
"""Number of configurations whose fastest placement is run."""


@dataclass(frozen=True)
class PlacementOption:
    """A trial that reached the target, and a placement (framework, workers, ...) for it."""

    prediction: Prediction
    spec: RunSpec
    is_measured: bool
    """Whether the search ran this placement."""

    @property
    def name(self) -> str:
        """Name of the run: trial, framework, workers, and other placement keys that are set."""
        short = self.spec.framework.replace("tensorflow", "tf")
        parts = [self.spec.accelerator_type or "", self.spec.compile.replace("none", "")]
        parts += [f"x{self.spec.accumulate}" if self.spec.accumulate > 1 else ""]
        parts += [f"prefetch{self.spec.prefetch}" if self.spec.prefetch else ""]
        where = f"{self.prediction.trial}.{short}{self.spec.num_workers}"
        return ".".join([where, *filter(None, parts)])


def placement_options(results: Study, placer: Placer) -> list[PlacementOption]:
    """Return all placements of all trials that reached the target, fastest first.

    The time on a trial's own placement is measured. On other placements, it is multiplied by the
    ratio of predicted step times; a prediction of an earlier session is kept, so that a resumed
    study has the same placement checks. Only trials on the best trial's GPU model count.
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
    ]  # step times hold for one GPU model
    searched += [results.specs[trial] for trial in runs["trial"]]
    options = []
    for trial in runs["trial"]:
        record = results.runs[trial]
        if record.role != "trial" or record.time_to_target_s is None:
            continue
        for placement, ratio in placer.ratios(record.spec).items():
            speed = speed_values(placement)
            expected = recorded.get((trial, *speed.values()), record.time_to_target_s * ratio)
            spec = placed(record.spec, placement)
            prediction = Prediction(trial=trial, time_to_target_s=expected, **speed)
            options.append(PlacementOption(prediction, spec, spec in searched))
    return sorted(options, key=lambda option: option.prediction.time_to_target_s)


def choose_checks(options: list[PlacementOption]) -> list[PlacementOption]:
    """Return the placements to run, without those that the search has run:

    - the fastest placement of each of the NUM_FASTEST fastest configurations,
    - for each GPU model, the placement with the fewest worker-seconds,
    - for each framework and GPU model, the fastest placement.
    """
    fastest: dict[str, PlacementOption] = {}
    for option in options:
        fastest.setdefault(option.prediction.trial, option)
    chosen = list(fastest.values())[:NUM_FASTEST]
    # Ties in worker-seconds go to fewer workers. GPU models differ in price, so each has a winner.
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


def num_placement_checks(factors: Factors | str) -> int:
    """Return the most placement checks (`verify`) possible; 0 if the space is not factorized."""
    if isinstance(factors, str):
        return 0
    machines = {
        (placement.framework, placement.accelerator_type) for placement in factors.all_placements
    }
    return NUM_FASTEST + len({model for _, model in machines}) + len(machines)


def verify(placer: Placer | None, single_run: SingleRun, confirm_budget: ConfirmBudget) -> None:
    """Record the predictions of a factorized space, and run the placements predicted to win, one
    at a time."""
    store, deadline = single_run.store, single_run.deadline
    store.check()
    # If time is short, placement checks and confirmation share what remains.
    confirming_s = confirm_budget.confirming_s()
    deadline.reserve_s = min(confirming_s, KEPT_FOR_CONFIRM * deadline.left_s)
    if placer is not None:
        _check_placements(load(store.folder), placer, single_run)
        store.check()
    deadline.reserve_s = 0.0


def _check_placements(results: Study, placer: Placer, single_run: SingleRun) -> None:
    options = placement_options(results, placer)
    columns = list(results.predictions.columns)
    recorded = {tuple(row) for row in results.predictions.itertuples(index=False)}
    for option in options:
        row = tuple(vars(option.prediction)[column] for column in columns)
        if not option.is_measured and row not in recorded:
            single_run.store.append(option.prediction.line())
    done = {name for name, record in results.runs.items() if record.state != "stopped"}
    fresh = [option for option in choose_checks(options) if option.name not in done]
    if not fresh or single_run.deadline.over:
        return
    progress = single_run.progress
    sources = [results.runs[option.prediction.trial] for option in fresh]
    after_s = progress.state.after_s  # seconds of the phases to come
    expect_s = sum(run.wall_s - run.ledger["queue"] for run in sources)
    progress.begin("placement_check", len(fresh), expect_s=expect_s)
    progress.state.after_s = after_s
    for option in fresh:
        if single_run.deadline.over:
            return
        single_run.train(
            option.spec, option.name, "placement_check", source=option.prediction.trial
        )
