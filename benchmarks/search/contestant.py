"""raybench's search as a contestant: the object that Ray Tune drives in a study, without Ray."""

from functools import partial
from pathlib import Path
from typing import Any

from noisy import Leader
from recorded import SLOTS, Config, Point, Space

from raybench.search.confirm_budget import are_similar
from raybench.search.curve_search import CurvePolicy, Decision
from raybench.search.factorisation import Factors, factorise, with_placement
from raybench.search.search import Search
from raybench.spec.run import Placement, RunSpec
from raybench.spec.study import build_study
from raybench.stats.curve_model import ModelSettings
from raybench.stats.record import Evaluation, RunOutcome, RunRecord

REACHED = -1e9
"""Score offset that ranks trials that reached the target before those that missed it."""


class Raybench:
    """The search of a study, on a simulated clock."""

    def __init__(
        self,
        space: Space,
        seed: int,
        folder: Path,
        *,
        overwrite: dict[str, Any] | None = None,
        curve_policy: dict[str, Any] | None = None,
        **search: Any,
    ):
        """Build the search.

        Args:
            space: The search space of the table.
            seed: Seed of the search.
            folder: Folder of the study's journal.
            overwrite: Keys of `space:` to replace.
            curve_policy: Constants of the sampler `model` to change, by name.
            search: Keys of `search:`.
        """
        constants = dict(curve_policy or {})
        model = ModelSettings(**constants.pop("model", {}))
        content = {
            "objective": space.objective.model_dump() | {"baseline_value": space.baseline_value},
            # A table has no rates outside of its range.
            "search": {"trials": 1_000_000, "seed": seed, "widen": False} | search,
            "space": space_of(space) | (overwrite or {}),
            "fixed": {"epochs": space.num_evaluations},  # an epoch is what one evaluation sees
        }
        study, parsed = build_study(content, "benchmark")
        factors = factorise(study, parsed, equal_frameworks=True)
        self._new_search = partial(
            Search,
            study,
            parsed,
            folder,
            factors=factors if study.search.factorise and isinstance(factors, Factors) else None,
            curve_policy=CurvePolicy(**constants, model=model),
            slots=SLOTS,
        )
        self._search = self._new_search()
        self._baseline_value = space.baseline_value
        self._is_modeled = study.search.sampler == "model"
        self._suggested: dict[str, tuple[str, RunSpec]] = {}
        """The search's name and the run spec of each trial, by the replay's name."""
        self.records: dict[str, RunRecord] = {}
        """Records of ended trials, by the replay's name."""
        self._curves: dict[str, list[Evaluation]] = {}
        """Evaluations of each trial, by the search's name."""

    def resume(self) -> None:
        """Begin a new session, as a study does after its driver was killed."""
        runs = {record.trial: record for record in self.records.values()}
        self._search = self._new_search(runs=runs, curves=self._curves)

    def continues(self, trial: str) -> str | None:
        """Return the replay's name of the interrupted trial that a trial continues."""
        name = self._suggested[trial][0]
        others = [
            other for other, (own, _) in self._suggested.items() if own == name and other != trial
        ]
        return others[-1] if others else None

    def suggest(self, trial: str) -> Config | None:
        """Propose the next trial."""
        suggestion = self._search.suggest()
        if suggestion is None:
            return None
        self._suggested[trial] = suggestion
        return config_of(suggestion[1])

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Record an evaluation; return whether the trial goes on."""
        name, _ = self._suggested[trial]
        return self._search.on_result(name, self._outcome(trial, point)) is Decision.CONTINUE

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Record the end of a trial."""
        name, spec = self._suggested[trial]
        outcome = self._outcome(trial, point, None if stop == "stopped" else stop)
        record = outcome.record(name, spec, role="trial", source=None, stopped_by="scheduler")
        self._search.on_end(record)
        self.records[trial] = record

    def incumbent(self) -> Config | None:
        """Return the best trial that reached the target, on its fastest placement as predicted.

        The sampler `model` ranks trials by its model of all curves, other samplers by the seconds
        of each trial.
        """
        if self._is_modeled and (names := self._search.curves.ranked()):
            spec = next(one.spec for one in self.records.values() if one.trial == names[0])
            return config_of(with_placement(spec, self._fastest(spec)[0]))
        ranked = self._ranked()
        return config_of(ranked[0][1]) if ranked else None

    def candidates(self) -> list[Leader]:
        """Return dissimilar configurations that reached the target, best first.

        The seconds of their search run are None if it had another placement, and for the first
        trial, because that of a study begins on a cold machine.
        """
        kept: list[tuple[RunSpec, float | None]] = []
        for score, spec, own in self._ranked():
            if score < REACHED / 2 and not any(are_similar(spec, one) for one, _ in kept):
                kept.append((spec, own))
        return [(config_of(spec), own) for spec, own in kept]

    def _ranked(self) -> list[tuple[float, RunSpec, float | None]]:
        """Return score (near `REACHED` for a hit), run spec and seconds of ended trials, sorted."""
        ranked: list[tuple[float, RunSpec, float | None]] = []
        first = next(iter(self._suggested), None)
        for trial, record in self.records.items():
            spec, score, own = record.spec, record.score, record.time_to_target_s
            if own is not None:
                fastest, ratio = self._fastest(spec)
                score = REACHED + own * ratio
                is_comparable = fastest == spec.placement and trial != first
                spec, own = with_placement(spec, fastest), own if is_comparable else None
            ranked.append((score, spec, own))
        return sorted(ranked, key=lambda row: row[0])

    def _fastest(self, spec: RunSpec) -> tuple[Placement, float]:
        """Return a run's fastest placement, and its seconds there over those where it ran."""
        placer = self._search.placer
        ratios = placer.ratios(spec) if placer else {spec.placement: 1.0}
        fastest = min(ratios, key=lambda placement: ratios[placement])
        return fastest, ratios[fastest]

    def _outcome(self, trial: str, point: Point, stop: Any = None) -> RunOutcome:
        """Record an evaluation; return it as a run client does."""
        name, spec = self._suggested[trial]
        evaluation = Evaluation(
            index=point.evaluation - 1,
            epoch=point.evaluation,
            samples=point.samples,
            train_s=point.train_s,
            train_loss=0.0,
            value=point.value,
            learning_rate=spec.learning_rate,
            samples_per_s=point.samples / point.train_s,
            best_value=point.best_value,
            time_to_target_s=point.time_to_target_s,
            stop=stop,
        )
        curve = self._curves.setdefault(name, [])
        if not curve or curve[-1].index < evaluation.index:
            curve.append(evaluation)
        return RunOutcome(
            evaluation=evaluation,
            is_over=stop is not None,
            ledger={"train": point.train_s},
            baseline_value=self._baseline_value,
        )


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


def config_of(spec: RunSpec) -> Config:
    """Return a run spec as a configuration of the replay."""
    return Config(spec.optimizer, spec.learning_rate, spec.batch_size_per_worker, spec.num_workers)
