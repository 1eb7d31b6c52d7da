"""A search cheap enough for hundreds of replays: raybench's early stopping, a TPE of our own.

The judging (`search.asha.EarlyStopping`, rungs and cap) is the real one, and so is the order of
sources of the policy's `draws`. What proposes is a TPE of a few lines over optimizer, rate and
batch size with Optuna's defaults (a tenth of the trials is good, 24 candidates, pruned trials
after complete ones, running ones among the bad), and one worker runs every trial: what depends on
workers, or on what Optuna does beyond that, is for `search_winner.py` to say.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from noisy import Leader
from recorded import CHANCE, Config, Point, Space

from raybench.core.record import Evaluation, RunOutcome, RunRecord
from raybench.core.spec import RunSpec
from raybench.core.study import StudySpec
from raybench.search.asha import EarlyStopping
from raybench.search.policy import DEFAULT, SearchPolicy

CANDIDATES, GOOD, MOST_GOOD = 24, 0.1, 25


class Place(NamedTuple):
    """A configuration: its optimizer's number, its rate and batch size as shares of a range."""

    optimizer: int
    rate: float
    batch: float


class Light:
    """A contestant of `replay.search`."""

    def __init__(
        self,
        space: Space,
        seed: int,
        *,
        policy: SearchPolicy = DEFAULT,
        **search: Any,
    ) -> None:
        content = {"objective": space.objective.model_dump(), "search": search, "space": {}}
        self._early = EarlyStopping(StudySpec.model_validate(content), None, policy)
        self._space, self._policy = space, policy
        self._batches = list(space.batch_sizes_per_worker)
        self._last = len(self._batches) - 1
        self._rng = np.random.default_rng(seed)
        self._optimizers = list(space.rates)
        self._places: dict[str, Place] = {}
        self.configs: dict[str, Config] = {}
        self._specs: dict[str, RunSpec] = {}
        self._order: dict[str, tuple[float, ...]] = {}
        """Of the trials that ended: how Optuna's TPE puts them in order."""
        self.records: dict[str, RunRecord] = {}
        self.why: dict[str, str] = {}
        """What stopped a trial that the search stopped itself: scheduler or cap."""

    def suggest(self, trial: str) -> Config:
        """Propose the next trial."""
        place = self._draw()
        config = self._config(place)
        self._places[trial], self.configs[trial] = place, config
        self._specs[trial] = RunSpec.model_construct(
            optimizer=config.optimizer,  # type: ignore[arg-type]
            learning_rate=config.rate,
            batch_size_per_worker=config.batch_size_per_worker,
            num_workers=1,
            epochs=float(self._space.num_evaluations),
        )
        return config

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Say whether the trial goes on."""
        reason = self._early.judge(trial, self._specs[trial], _evaluation(point))
        if reason is not None:
            self.why[trial] = reason
        return reason is None

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Learn how the trial ended."""
        is_over = stop != "stopped"
        outcome = RunOutcome(
            evaluation=_evaluation(point, stop if is_over else None),
            is_over=is_over,
            ledger={"train": point.train_s},
            chance=CHANCE,
        )
        spec = self._specs[trial]
        record = outcome.record(trial, spec, role="trial", source=None, stopped_by="scheduler")
        if is_over:
            self._early.learn(record)
        self.records[trial] = record
        pruned = (1.0, -point.train_s, point.score)
        self._order[trial] = (0.0, point.score) if is_over else pruned

    def incumbent(self) -> Config | None:
        """Return the best trial's configuration."""
        best = self.contenders()
        return best[0][0] if best else None

    def contenders(self) -> list[Leader]:
        """Return the trials that reached the target, best first, with their seconds."""
        found: list[tuple[float, Config]] = [
            (record.time_to_target_s, self.configs[trial])
            for trial, record in self.records.items()
            if record.time_to_target_s is not None
        ]
        return [(config, own) for own, config in sorted(found, key=lambda one: one[0])]

    def _config(self, place: Place) -> Config:
        name = self._optimizers[place.optimizer]
        batch = self._batches[round(place.batch * self._last)]
        return Config(name, self._space.rate(name, place.rate), batch, 1)

    def _draw(self) -> Place:
        count = len(self._places)
        if count < self._policy.startup_trials:
            prior = self._prior(count // 2) if count % 2 == 0 else None
            return prior or self._random()
        place = self._random()
        for source in self._policy.draws:
            place = self._random()
            if source == "sampler":
                place = self._modelled()
            elif source == "neighbour":
                place = self._neighbour() or place
            if not self._is_tried(place):
                break
        return place

    def _random(self) -> Place:
        optimizer = int(self._rng.integers(len(self._optimizers)))
        return Place(
            optimizer,
            float(self._rng.random()),
            float(self._rng.integers(self._last + 1)) / self._last,
        )

    def _prior(self, number: int) -> Place | None:
        if number >= len(self._optimizers):
            return None
        name = self._optimizers[number]
        rate = self._policy.base_rates[name] * self._policy.haste
        return Place(
            number,
            min(max(self._space.share(name, rate), 0.0), 1.0),
            self._batches.index(64) / self._last,
        )

    def _is_tried(self, place: Place) -> bool:
        return any(
            one.optimizer == place.optimizer
            and round(self._last * (one.batch - place.batch)) == 0
            and abs(one.rate - place.rate) < self._policy.resolution
            for one in self._places.values()
        )

    def _neighbour(self) -> Place | None:
        best = sorted(self._order, key=lambda trial: self._order[trial])[: self._policy.num_best]
        for trial in best:
            own = self._places[trial]
            for rate, batch in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                place = Place(
                    own.optimizer,
                    own.rate + rate * self._policy.step,
                    round(self._last * own.batch + batch) / self._last,
                )
                is_inside = 0 <= place.rate <= 1 and 0 <= place.batch <= 1
                if is_inside and not self._is_tried(place):
                    return place
        return None

    def _modelled(self) -> Place:
        """Draw from the density of the good trials what is rarest among the others."""
        ended = sorted(self._order, key=lambda trial: self._order[trial])
        count = min(math.ceil(GOOD * len(ended)), MOST_GOOD)
        good = [self._places[trial] for trial in ended[:count]]
        running = [trial for trial in self._places if trial not in self._order]
        bad = [self._places[trial] for trial in [*ended[count:], *running]]
        drawn = [self._near(good) for _ in range(CANDIDATES)]
        ratio = self._density(drawn, good) - self._density(drawn, bad)
        return drawn[int(ratio.argmax())]

    def _width(self, count: int) -> float:
        # Optuna's multivariate kernels.
        return float(0.2 * max(count, 1) ** (-1 / 7))

    def _near(self, some: list[Place]) -> Place:
        number = int(self._rng.integers(len(some) + 1))
        if number == len(some):
            return self._random()
        own, width = some[number], self._width(len(some))
        optimizer = own.optimizer
        if self._rng.random() < (len(self._optimizers) - 1) / (len(self._optimizers) + len(some)):
            optimizer = int(self._rng.integers(len(self._optimizers)))
        rate, batch = (own.rate, own.batch) + width * self._rng.standard_normal(2)
        return Place(
            optimizer,
            float(np.clip(rate, 0, 1)),
            round(self._last * float(np.clip(batch, 0, 1))) / self._last,
        )

    def _density(self, at: list[Place], some: list[Place]) -> np.ndarray:
        """Return the logarithm of the density of `some`, a broad prior among them."""
        points, kernels = np.array(at, float), np.array([*some, (-1, 0.5, 0.5)], float)
        width = np.full(len(kernels), self._width(len(some)))
        width[-1] = 1.0
        off = points[:, None, 1:] - kernels[None, :, 1:]
        close = np.exp(-0.5 * (off / width[None, :, None]) ** 2).prod(axis=-1) / width**2
        same = points[:, None, 0] == kernels[None, :, 0]
        classes = len(self._optimizers)
        match = np.where(same, 1 + 1 / len(kernels), 1 / len(kernels))
        match[:, -1] = 1 / classes
        return np.asarray(np.log((close * match).mean(axis=1) + 1e-300))


def _evaluation(point: Point, stop: Any = None) -> Evaluation:
    return Evaluation(
        index=point.evaluation - 1,
        epoch=point.evaluation,
        samples=point.samples,
        train_s=point.train_s,
        train_loss=0.0,
        value=point.value,
        learning_rate=0.0,
        samples_per_s=point.samples / point.train_s,
        best_value=point.best_value,
        time_to_target_s=point.time_to_target_s,
        stop=stop,
    )
