"""raybench's own search as a contestant: its real searcher and scheduler, without the cluster."""

import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peer_ray import Ray
from recorded import Config, Point, Space

from raybench.core.study import build_study
from raybench.search import near, priors, proposals
from raybench.search.pipeline.deadline import Deadline
from raybench.search.ray_tune.opaque import wrap
from raybench.search.ray_tune.scheduler import TimeRungs
from raybench.search.ray_tune.searcher import StudySearcher
from raybench.speed.factorisation import Factors, factorise
from raybench.speed.placement import Placer

USUAL = dict(priors.BASE_RATES)
HASTE = priors.HASTE
RESOLUTION = near.RESOLUTION
DRAWS = proposals.DRAWS


class Raybench:
    """Calls the searcher and the scheduler as Tune and the recorder do in a real search."""

    def __init__(
        self,
        space: Space,
        seed: int,
        folder: Path,
        *,
        rungs: bool = True,
        overwrite: dict[str, Any] | None = None,
        **search: Any,
    ):
        """`overwrite` changes parts of `space:`; other options are keys of `search:`."""
        content = {
            "objective": space.objective.model_dump(),
            "search": {"trials": 1_000_000, "seed": seed} | search,
            "space": space_of(space) | (overwrite or {}),
            "fixed": {"epochs": space.num_evaluations},  # an epoch is what one evaluation sees
        }
        study, parsed = build_study(content, "benchmark")
        factors = factorise(study, parsed, equal_frameworks=True)
        is_factored = study.search.factorise and isinstance(factors, Factors)
        self.speed = Placer(factors) if is_factored else None
        control = Deadline(None, began=time.perf_counter())
        self.searcher = StudySearcher(study, parsed, folder, control, None, self.speed)
        self.scheduler = TimeRungs(study, self.speed)
        self.scheduler._has_rungs &= rungs
        self.trials: dict[str, SimpleNamespace] = {}
        self.ended: dict[str, Point] = {}

    def suggest(self, trial: str) -> Config | None:
        """Propose the next trial."""
        config = self.searcher.suggest(trial)
        if not isinstance(config, dict):
            return None
        self.trials[trial] = SimpleNamespace(config=config, trial_id=trial)
        return config_of(config["spec"])

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Ask the scheduler, then tell the searcher, as Tune does."""
        result = result_of(point, None)
        if self.scheduler.on_trial_result(None, self.trials[trial], result) == "STOP":
            return False
        self.searcher.on_trial_result(trial, result)
        return True

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Tell both, and settle as the recorder does."""
        result = result_of(point, None if stop == "stopped" else stop)
        if stop != "stopped":
            self.scheduler.on_trial_complete(None, self.trials[trial], result)
        self.searcher.on_trial_complete(trial, result)
        self.searcher.settle(trial)
        self.ended[trial] = point

    def incumbent(self) -> Config | None:
        """Return the configuration that would be confirmed first: the best trial, on the split
        predicted to be its fastest."""
        best = self.leaders(1)
        return best[0] if best else None

    def leaders(self, number: int) -> list[Config]:
        """Return the best trials, each on the split predicted to be its fastest."""
        found: list[tuple[float, int, Config]] = []
        for trial, point in self.ended.items():
            spec = self.trials[trial].config["spec"]
            score, split = point.score, None
            if self.speed is not None and point.time_to_target_s is not None:
                ratios = self.speed.ratios(spec)
                split = min(ratios, key=lambda one: ratios[one])
                score = point.time_to_target_s * ratios[split] - 1e9  # before every miss
            elif point.time_to_target_s is not None:
                score = point.time_to_target_s - 1e9
            config = config_of(spec | (split.values() if split else {}))
            found.append((score, len(found), config))
        return [config for *_, config in sorted(found, key=lambda one: one[:2])[:number]]


def make_raybench(
    space: Space,
    seed: int,
    folder: Path,
    *,
    prior_factor: float = 1.0,
    resolution: float | None = None,
    without: str | None = None,
    haste: float | None = None,
    **options: Any,
) -> Raybench:
    """Build it; options are keys of `search:` in a space file, and for ablations: `rungs`, a
    factor on every usual rate, the resolution below which proposals count as repetitions,
    a source of draws to leave out, the factor for the objective.
    """
    # Every search has a process, or a turn in one, of its own: set both ways each time.
    priors.BASE_RATES.update({name: rate * prior_factor for name, rate in USUAL.items()})
    near.RESOLUTION = RESOLUTION if resolution is None else resolution
    proposals.DRAWS = tuple(source for source in DRAWS if source != without)
    priors.HASTE = HASTE if haste is None else haste
    return Raybench(space, seed, folder, **options)


def make_ray_with_priors(space: Space, seed: int, folder: Path) -> Ray:
    """Build stock Ray with raybench's priors as `points_to_evaluate`."""
    priors.BASE_RATES.update(USUAL)
    content = {"objective": space.objective.model_dump(), "space": space_of(space)}
    _, parsed = build_study(content, "benchmark")
    known = priors.priors(parsed, {}, factor=HASTE)
    configs = [
        Config(one["optimizer"], one["learning_rate"], one["batch_size_per_worker"], workers)
        for one in known
        for workers in [one["num_workers"]]
    ]
    return Ray(space, seed, folder, priors=tuple(configs))


def space_of(space: Space) -> dict[str, Any]:
    """Return the `space:` part of a search-space file."""
    return {
        "num_workers": list(space.num_workers),
        "batch_size_per_worker": list(space.batch_sizes_per_worker),
        "optimizer": list(space.rates),
        "learning_rate": [
            {"when": {"optimizer": name}, "low": low, "high": high, "log": True}
            for name, (low, high) in space.rates.items()
        ],
    }


def config_of(spec: dict[str, Any]) -> Config:
    """Return a run spec as the replay names it."""
    return Config(
        spec["optimizer"],
        spec["learning_rate"],
        spec["batch_size_per_worker"],
        spec["num_workers"],
    )


def result_of(point: Point, stop: str | None) -> dict[str, Any]:
    """Return an evaluation as a trial reports it to Tune."""
    return wrap(
        {
            "evaluation": asdict(point)
            | {"index": point.evaluation - 1, "epoch": point.evaluation},
            "train_s": point.train_s,
            "accuracy": point.accuracy,
            "score": point.score,
            "stop": stop,
            "failure": None,
            "done": stop is not None,
        }
    )
