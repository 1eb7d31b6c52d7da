"""What a tool may choose, in words that every library has; and such a tool as a contestant.

`Axis` says what one library's space says, `Tool` is what a library does with it. The same tool
searches a recorded table (`AxesPeer`) and a pool of recorded runs (`pools.py`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
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
    """Without any: a share, 0 to 1."""
    is_ordered: bool = False
    prior: Any = None
    """A user's guess, for tools that take one."""
    when: tuple[str, Any] | None = None
    """Only where this axis has this value; tools without conditions choose it always."""


class Tool:
    """A library's search: asked, told of every evaluation but the last, told of the end."""

    def ask(self, trial: str) -> Values | None:
        """Propose the values of a new trial; None: nothing now."""
        raise NotImplementedError

    def goes_on(self, trial: str, point: Point) -> bool:
        """Say whether the trial goes on after an evaluation that did not end it."""
        del trial, point
        return True

    def tell(self, trial: str, point: Point, stop: str) -> None:
        """Learn how the trial ended: "stopped" by this tool, or by itself."""


def axes_of(space: Space) -> tuple[Axis, ...]:
    """Return a table's space; the prior is the first configuration that raybench tries."""
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
    """Return what `peer_ray.TuneScheduler` reads of a space when it counts seconds."""
    return SimpleNamespace(objective=SimpleNamespace(max_train_seconds=max_seconds))


class AxesPeer(Peer):
    """A tool over a table's space. A training that is resumed starts anew: tables know no other."""

    def __init__(
        self, build: Callable[..., Tool], space: Space, seed: int, folder: Path, **options: Any
    ):
        super().__init__(space, seed, folder)
        logging.getLogger().setLevel(logging.ERROR)
        max_seconds = space.objective.max_train_seconds
        self.tool = build(axes_of(space), seed, max_seconds, folder, **options)

    def propose(self, trial: str) -> Config | None:
        """Ask the tool."""
        values = self.tool.ask(trial)
        if values is None:
            return None
        optimizer = str(values["optimizer"])
        rate = self.space.rate(optimizer, float(values["rate"]))
        return Config(optimizer, rate, int(values["batch"]), int(values["workers"]))

    def on_evaluation(self, trial: str, point: Point) -> bool:
        """Ask the tool."""
        return self.tool.goes_on(trial, point)

    def told(self, trial: str, point: Point, stop: str) -> None:
        """Tell the tool."""
        self.tool.tell(trial, point, stop)
