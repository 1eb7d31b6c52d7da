"""raybench's own search as a contestant: what Ray Tune drives in a study, without the cluster."""

from functools import partial
from pathlib import Path
from typing import Any

from noisy import Leader
from recorded import SLOTS, Config, Point, Space

from raybench.search.confirm_budget import are_similar
from raybench.search.curve_search import CurvePolicy, Decision
from raybench.search.factorisation import Factors, factorise, placed
from raybench.search.search import Search
from raybench.spec.run import Placement, RunSpec
from raybench.spec.study import build_study
from raybench.stats.curve_model import ModelSettings
from raybench.stats.record import Evaluation, RunOutcome, RunRecord

REACHED = -1e9
"""Puts trials that reached the target before all that missed it."""


class Raybench:
    """The search that a study runs: asked, reported to and told on a simulated clock."""

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
        """`overwrite` changes parts of `space:`, `curve_policy` the constants of sampler `model`;
        other options are keys of `search:`."""
        chosen = dict(curve_policy or {})
        model = ModelSettings(**chosen.pop("model", {}))
        content = {
            "objective": space.objective.model_dump() | {"baseline_value": space.baseline_value},
            # A table has no rates beyond its own.
            "search": {"trials": 1_000_000, "seed": seed, "widen": False} | search,
            "space": space_of(space) | (overwrite or {}),
            "fixed": {"epochs": space.num_evaluations},  # an epoch is what one evaluation sees
        }
        study, parsed = build_study(content, "benchmark")
        found = factorise(study, parsed, equal_frameworks=True)
        self._new_search = partial(
            Search,
            study,
            parsed,
            folder,
            factors=found if study.search.factorise and isinstance(found, Factors) else None,
            curve_policy=CurvePolicy(**chosen, model=model),
            slots=SLOTS,
        )
        self._search = self._new_search()
        self._chance, self._is_modeled = space.baseline_value, study.search.sampler == "model"
        self._asked: dict[str, tuple[str, RunSpec]] = {}
        self.records: dict[str, RunRecord] = {}
        """Of the trials that have ended, by the replay's names."""
        self._curves: dict[str, list[Evaluation]] = {}
        """Evaluations by the search's names."""

    def resume(self) -> None:
        """Begin a new session, as a study does after its driver was killed."""
        runs = {record.trial: record for record in self.records.values()}
        self._search = self._new_search(runs=runs, curves=self._curves)

    def continues(self, trial: str) -> str | None:
        """Return the replay's name of the interrupted trial that this one continues."""
        name = self._asked[trial][0]
        own = [one for one, (other, _) in self._asked.items() if other == name and one != trial]
        return own[-1] if own else None

    def suggest(self, trial: str) -> Config | None:
        """Propose the next trial."""
        asked = self._search.suggest()
        if asked is None:
            return None
        self._asked[trial] = asked
        return config_of(asked[1])

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Report an evaluation after which the trial would go on."""
        name, _ = self._asked[trial]
        return self._search.on_result(name, self._outcome(trial, point)) is Decision.CONTINUE

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Tell how the trial ended."""
        name, spec = self._asked[trial]
        outcome = self._outcome(trial, point, None if stop == "stopped" else stop)
        record = outcome.record(name, spec, role="trial", source=None, stopped_by="scheduler")
        self._search.on_end(record)
        self.records[trial] = record

    def incumbent(self) -> Config | None:
        """Return the best trial that reached the target, on the placement predicted to be its
        fastest: by the model of all curves, which proposes with sampler `model`, else by its own
        seconds."""
        best = self.leaders(1)
        if self._is_modeled and (names := self._search.curves.ranked()):
            spec = next(one.spec for one in self.records.values() if one.trial == names[0])
            return config_of(placed(spec, self._fastest(spec)[0]))
        return best[0] if best else None

    def leaders(self, number: int) -> list[Config]:
        """Return the best trials, each on the placement predicted to be its fastest."""
        return [config_of(spec) for _, spec, _ in self._ranked()[:number]]

    def candidates(self) -> list[Leader]:
        """Return those that reached the target, best first and apart, with their own run's seconds.

        No such seconds have those that ran on another placement, and the first trial: a study's
        begins on a cold machine.
        """
        kept: list[tuple[RunSpec, float | None]] = []
        for score, spec, own in self._ranked():
            if score < REACHED / 2 and not any(are_similar(spec, one) for one, _ in kept):
                kept.append((spec, own))
        return [(config_of(spec), own) for spec, own in kept]

    def _ranked(self) -> list[tuple[float, RunSpec, float | None]]:
        """Return score (near `REACHED` where the target was), run spec, own seconds."""
        found: list[tuple[float, RunSpec, float | None]] = []
        first = next(iter(self._asked), None)
        for trial, record in self.records.items():
            spec, score, own = record.spec, record.score, record.time_to_target_s
            if own is not None:
                fastest, ratio = self._fastest(spec)
                score = REACHED + own * ratio
                is_comparable = fastest == spec.placement and trial != first
                spec, own = placed(spec, fastest), own if is_comparable else None
            found.append((score, spec, own))
        return sorted(found, key=lambda one: one[0])

    def _fastest(self, spec: RunSpec) -> tuple[Placement, float]:
        """Return a run's fastest placement, and its seconds there over those where it ran."""
        placer = self._search.placer
        ratios = placer.ratios(spec) if placer else {spec.placement: 1.0}
        fastest = min(ratios, key=lambda one: ratios[one])
        return fastest, ratios[fastest]

    def _outcome(self, trial: str, point: Point, stop: Any = None) -> RunOutcome:
        """Record an evaluation and return it as a run client gives it."""
        name, spec = self._asked[trial]
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
            baseline_value=self._chance,
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
    """Return a run spec as the replay names it."""
    return Config(spec.optimizer, spec.learning_rate, spec.batch_size_per_worker, spec.num_workers)
