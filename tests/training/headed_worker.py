"""One worker of a group, as a script: trains `Headed` by each spec without Ray and saves weights.

python headed_worker.py SPECS_JSON RANK FOLDER PORT [PORT2 ...]: the ports of all workers.
"""

import json
import sys
from pathlib import Path

import numpy as np
from group_worker import join, leave
from headed import PICTURES, Headed, seen, weights_of

from raybench.spec.run import RunSpec
from raybench.training.base import World, find_backend
from raybench.training.steps import make_step, take_until, training_steps

PARTIAL = 7
"""Samples of a last batch: shares of 4 and 3."""


def main() -> None:
    specs = [RunSpec.model_validate(content) for content in json.loads(sys.argv[1])]
    rank, folder, ports = int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    world = join(specs[0].framework, rank, ports)
    for index, spec in enumerate(specs):
        np.savez(folder / f"{index}-{rank}.npz", **outcome(spec, world))
    leave(specs[0].framework, rank, folder)


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
    main()
