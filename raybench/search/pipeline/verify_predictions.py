"""What the search has not run but the step-time model names: other splits of what it has.

A prediction is a reason to run a configuration, never a result. So the splits that would win
are trained once, as trials of their own, before winners are confirmed.
"""

from dataclasses import astuple, dataclass
from typing import Any

from raybench.core.documents import validate
from raybench.core.record import Prediction
from raybench.core.spec import RunSpec
from raybench.results.load import StudyResults
from raybench.results.tables import ranked
from raybench.search.pipeline.single_run import SingleRun
from raybench.speed.factorisation import Split
from raybench.speed.placement import Placer

NUM_FASTEST = 3
"""Configurations whose fastest split is run."""
SHORT = {"tensorflow": "tf"}


@dataclass(frozen=True)
class Way:
    """A configuration that reached the target, on one of its splits."""

    prediction: Prediction
    spec: dict[str, Any]
    is_measured: bool
    """Whether some run of the search had this spec."""

    @property
    def name(self) -> str:
        """Name of its trial: that of the configuration's, with framework and workers."""
        framework = self.spec["framework"]
        short = SHORT.get(framework, framework)
        return f"{self.prediction.trial}.{short}{self.spec['num_workers']}"


def ways(results: StudyResults, speed: Placer) -> list[Way]:
    """Return every split of every trial that reached the target, fastest first.

    Seconds of a trial's own split are measured; those of others are its seconds times the
    ratio of the step times by the model. What was predicted once stays so: a study that is
    continued has the finalists it had.
    """
    known = {
        (trial, Split(*split)): seconds
        for trial, *split, seconds in results.predictions.itertuples(index=False)
    }
    searched = [results.specs[trial] for trial in ranked(results.trials)["trial"]]
    runs = ranked(results.trials)
    runs = runs[runs["time_to_target_s"].notna() & ~runs["trial"].str.contains(".", regex=False)]
    found = []
    for trial, seconds in zip(runs["trial"], runs["time_to_target_s"], strict=True):
        spec = results.specs[trial]
        for split, ratio in speed.ratios(spec).items():
            expected = known.get((trial, split), float(seconds) * ratio)
            prediction = Prediction(trial=trial, time_to_target_s=expected, **split.values())
            way_spec = spec | split.values()
            found.append(Way(prediction, way_spec, way_spec in searched))
    return sorted(found, key=lambda way: way.prediction.time_to_target_s)


def choose(every: list[Way]) -> list[Way]:
    """Return the splits to run: the fastest of the fastest configurations, the cheapest of all,
    and the fastest of each framework; without those that the search has run."""
    fastest: dict[str, Way] = {}
    for way in every:
        fastest.setdefault(way.prediction.trial, way)
    chosen = list(fastest.values())[:NUM_FASTEST]
    chosen += sorted(every, key=_cost)[:1]
    for framework in sorted({way.spec["framework"] for way in every}):
        chosen += [way for way in every if way.spec["framework"] == framework][:1]
    return [way for way in {way.name: way for way in chosen}.values() if not way.is_measured]


def run_finalists(study_results: StudyResults, speed: Placer, alone: SingleRun) -> None:
    """Record the predictions, and train those that would win once, one at a time."""
    every = ways(study_results, speed)
    known = {tuple(row) for row in study_results.predictions.itertuples(index=False)}
    for way in every:
        if not way.is_measured and astuple(way.prediction) not in known:
            alone.store.append(way.prediction.line())
    done = study_results.trials[study_results.trials["state"] != "stopped"]
    fresh = [way for way in choose(every) if way.name not in set(done["trial"])]
    if not fresh or alone.control.over:
        return
    alone.screen.begin("finalist", len(fresh))
    for way in fresh:
        if alone.control.over:
            return
        alone.train(validate(RunSpec, way.spec, way.name), way.name, "search")


def _cost(way: Way) -> tuple[float, int]:
    """Order by worker-seconds; equal ones by workers."""
    return way.prediction.worker_seconds, way.prediction.num_workers
