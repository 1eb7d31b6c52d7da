"""Base class of the search tools that raybench is compared with, and random search.

Each peer (`peer_ray.py`, `peer_optuna.py`, `peer_syne.py`, ...) calls the library's own objects in
the order in which the library's own loop does (Tune's `TuneController`, Syne Tune's `Tuner`,
Optuna's ask and tell). All minimize `Point.score`. If a library offers a choice, the one that
searched best here was taken.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
from recorded import Config, Point, Space

GRACE = 1 / 64
"""Share of max_train_seconds before which no trial is stopped: an eighth of the best time."""
THOUSANDTHS = 1000
"""Value of the integer resource of Optuna, Syne Tune and NePS at max_train_seconds."""


class Peer:
    """A peer without early stopping, whose incumbent is its best finished trial."""

    def __init__(self, space: Space, seed: int, folder: Path):
        self.space = space
        self.seed = seed
        self.configs: dict[str, Config] = {}
        self._best: tuple[float, Config] | None = None
        # Ray's brackets and Syne Tune's candidates come from the global generators.
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002

    def suggest(self, trial: str) -> Config | None:
        """Return the configuration of a new trial, and store it."""
        config = self.propose(trial)
        if config is not None:
            self.configs[trial] = config
        return config

    def propose(self, trial: str) -> Config | None:
        """Return the library's next configuration."""
        raise NotImplementedError

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Let the trial go on."""
        return True

    def on_end(self, trial: str, point: Point, stop: str) -> None:
        """Record the end of a trial, and report it to the library."""
        if self._best is None or point.score < self._best[0]:
            self._best = (point.score, self.configs[trial])
        self.told(trial, point, stop)

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Report the end of a trial to the library."""

    def incumbent(self) -> Config | None:
        """Return the finished trial with the best score."""
        return self._best[1] if self._best else None

    def elapsed(self, point: Point) -> int:
        """Return train seconds in thousandths of max_train_seconds."""
        share = point.train_s / self.space.objective.max_train_seconds
        return max(1, round(THOUSANDTHS * share))


class Random(Peer):
    """Uniform random search without early stopping."""

    def __init__(self, space: Space, seed: int, folder: Path):
        super().__init__(space, seed, folder)
        self.rng = np.random.default_rng(seed)

    def propose(self, trial: str) -> Config:
        """Return a random configuration."""
        optimizer = str(self.rng.choice(list(self.space.rates)))
        return Config(
            optimizer,
            self.space.rate(optimizer, float(self.rng.random())),
            int(self.rng.choice(self.space.batch_sizes_per_worker)),
            int(self.rng.choice(self.space.num_workers)),
        )


def result_of(point: Point) -> dict[str, Any]:
    """Return what a training function would report to Tune or Syne Tune."""
    return {
        "training_iteration": point.evaluation,
        "train_s": point.train_s,
        "accuracy": point.value,
        "score": point.score,
    }
