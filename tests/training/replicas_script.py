"""Script: all replicas of a run in one process, on logical devices of the CPU.

The devices must be created before TensorFlow is used, hence a process of its own.
`python replicas_script.py SPECS_JSON FOLDER` trains each spec as `worker_script` does; a spec that
records steps is trained whole and resumed, as in `checkpointed_runs`.
"""

import json
import sys
from pathlib import Path

import numpy as np
from checkpointed_runs import MIDDLE, curve_values, resume_and_train, train_and_save
from worker_script import train_result

from raybench.spec.run import RunSpec
from raybench.training.base import DistributedContext, find_backend

NUM_REPLICAS = 2


def main() -> None:
    specs = [RunSpec.model_validate(content) for content in json.loads(sys.argv[1])]
    folder = Path(sys.argv[2])
    world = find_backend(specs[0].framework).join(
        rank=0, num_workers=1, device="cpu", num_threads=1, num_replicas=NUM_REPLICAS
    )
    for index, spec in enumerate(specs):
        if spec.record_steps:
            save_whole_and_resumed(spec, world, folder)
        else:
            np.savez(folder / f"{index}.npz", **train_result(spec, world))


def save_whole_and_resumed(spec: RunSpec, world: DistributedContext, folder: Path) -> None:
    """Save curve and state of every replica, after a whole run and after a resumed one."""
    curve, trainer = train_and_save(spec, world, folder / "whole")
    rest, resumed = resume_and_train(spec, world, folder / "whole" / str(MIDDLE))
    for name, points, run_trainer in (("whole", curve, trainer), ("rest", rest, resumed)):
        copies = [variable.numpy() for replica in run_trainer._copies() for variable in replica]
        arrays = {f"copy{index}": array for index, array in enumerate(copies)}
        np.savez(folder / f"{name}.npz", curve=curve_values(points), **arrays)
    (folder / "curve.json").write_text(json.dumps([point.line("0000") for point in curve]))


if __name__ == "__main__":
    main()
