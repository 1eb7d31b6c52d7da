"""Search libraries behind one interface (`Tool`), and a tool as a contestant (`ToolPeer`).

`Axis` is a dimension of a space in terms that every library has. The same tool searches a recorded
table (`AxesPeer`) and a pool of recorded runs (`pools.py`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from contestant import space_of
from peer import Peer
from recorded import Config, Point, Space

from raybench.search.sampling.default_rates import HASTE, initial_configurations
from raybench.spec.study import build_study

Values = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """One dimension of a space."""

    name: str
    choices: tuple[Any, ...] = ()
    """Values of the axis; if empty, it is a share from 0 to 1."""
    is_ordered: bool = False
    prior: Any = None
    """A user's guess of the best value, for tools that take one."""
    when: tuple[str, Any] | None = None
    """Name and value of another axis: this axis applies only where that one has the value. Tools
    without conditions always choose it."""


class Tool:
    """A library's search: gets every evaluation of a trial but the last, then the trial's end."""

    def ask(self, trial: str) -> Values | None:
        """Return the values of a new trial, or None if the library proposes nothing now."""
        raise NotImplementedError

    def goes_on(self, trial: str, point: Point) -> bool:
        """Return whether the trial goes on after an evaluation that did not end it."""
        del trial, point
        return True

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Record the end of a trial.

        Args:
            trial: Name of the trial.
            point: Last evaluation.
            stop: "stopped" if this tool stopped the trial, otherwise what ended it.
        """


def axes_of(space: Space) -> tuple[Axis, ...]:
    """Return a table's space; priors are the first configuration that raybench tries."""
    content = {"objective": space.objective.model_dump(), "space": space_of(space)}
    _, parsed = build_study(content, "benchmark")
    first = initial_configurations(parsed, {}, factor=HASTE)[0]
    share = space.share(first["optimizer"], first["learning_rate"])
    return (
        Axis("optimizer", tuple(space.rates), prior=first["optimizer"]),
        Axis("rate", prior=min(max(share, 0.0), 1.0)),
        Axis(
            "batch",
            space.batch_sizes_per_worker,
            is_ordered=True,
            prior=first["batch_size_per_worker"],
        ),
        Axis("workers", space.num_workers, is_ordered=True, prior=first["num_workers"]),
    )


def limits(max_seconds: float) -> Any:
    """Return a space with the only attribute that `peer_ray.TuneScheduler` reads."""
    return SimpleNamespace(objective=SimpleNamespace(max_train_seconds=max_seconds))


class ToolPeer(Peer):
    """A tool over a table's space that names a rate for each optimizer (`rate_adam`, ...)."""

    def __init__(self, build: Callable[[], Tool], space: Space, seed: int, folder: Path):
        super().__init__(space, seed, folder)
        logging.getLogger().setLevel(logging.ERROR)
        self._tool = build()  # after the global generators have been seeded

    def rate_of(self, values: Values) -> float:
        """Return the learning rate that a tool has chosen."""
        return float(values[f"rate_{values['optimizer']}"])

    def propose(self, trial: str) -> Config | None:
        """Ask the tool for a configuration."""
        values = self._tool.ask(trial)
        if values is None:
            return None
        optimizer, rate = str(values["optimizer"]), self.rate_of(values)
        return Config(optimizer, rate, int(values["batch"]), int(values["workers"]))

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Ask the tool whether the trial goes on."""
        return self._tool.goes_on(trial, point)

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Report the end of a trial to the tool."""
        self._tool.tell(trial, point, stop)


class AxesPeer(ToolPeer):
    """A tool over a table's axes, with the rate as a share of its optimizer's range.

    A training that the tool resumes starts anew, because tables record whole trainings only.
    """

    def __init__(
        self, tool: Callable[..., Tool], space: Space, seed: int, folder: Path, **options: Any
    ):
        limit = space.objective.max_train_seconds
        build = partial(tool, axes_of(space), seed, limit, folder, **options)
        super().__init__(build, space, seed, folder)

    def rate_of(self, values: Values) -> float:
        """Return the learning rate at the chosen share of its optimizer's range."""
        return self.space.rate(str(values["optimizer"]), float(values["rate"]))
