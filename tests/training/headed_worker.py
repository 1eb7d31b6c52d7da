"""One worker of a group, as a script: trains `Headed` by each spec and saves its weights."""

from pathlib import Path
from typing import Any

import numpy as np
from group import serve
from headed import PICTURES, Headed, seen, weights_of

from raybench.spec.run import RunSpec
from raybench.training.base import World, find_backend
from raybench.training.steps import make_step, take_until, training_steps

PARTIAL = 7
"""Samples of a last batch: shares of 4 and 3."""


def work(framework: str, specs: Any, world: World, folder: Path) -> None:
    for index, content in enumerate(specs):
        found = outcome(RunSpec.model_validate(content), world)
        np.savez(folder / f"{index}-{world.rank}.npz", **found)


def outcome(spec: RunSpec, world: World) -> dict[str, np.ndarray]:
    """Two epochs and a partial batch."""
    trainer = find_backend(spec.framework).Trainer(spec, Headed(), PICTURES, world)
    chunk, _ = take_until(training_steps(spec, PICTURES, world), 2 * len(PICTURES.train))
    trainer.warm_up(chunk[0])
    trainer.train(chunk)
    trainer.train([make_step(spec, np.arange(PARTIAL), world, lambda _: 1e-3, 0)])
    own = {f"own.{name}": one for name, one in weights_of(trainer).items() if "running" in name}
    own["own.seen"] = seen(trainer)
    trainer.evaluate("validation", slice(0, 8))
    found = weights_of(trainer) | {"per_worker": np.array(trainer.batch_statistics)} | own
    found["seen"] = seen(trainer)
    trainer.close()
    return found


if __name__ == "__main__":
    serve(work)
