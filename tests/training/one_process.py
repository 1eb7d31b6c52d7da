"""Script: all replicas of a run in one process, on logical devices of the CPU. These must be
created before TensorFlow is used, so it runs separately.

python one_process.py SPECS_JSON FOLDER: trains each spec as in one_worker.py or, with checkpoints,
whole and continued as in continued.py.
"""

import json
import sys
from pathlib import Path

import numpy as np
from continued import MIDDLE, all_of, continued, facts, whole
from one_worker import outcome

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
            save_continued(spec, world, folder)
        else:
            np.savez(folder / f"{index}.npz", **outcome(spec, world))


def save_continued(spec: RunSpec, world: DistributedContext, folder: Path) -> None:
    """Save what a whole run and its second half hold, every replica's copies, and what was told."""
    curve, trainer = whole(spec, world, folder / "whole")
    rest, again = continued(spec, world, folder / "whole" / str(MIDDLE))
    for name, points, one in (("whole", curve, trainer), ("rest", rest, again)):
        copies = [v.numpy() for replica in one._copies() for v in replica]
        arrays = {f"copy{index}": array for index, array in enumerate(copies)}
        np.savez(folder / f"{name}.npz", facts=facts(points), **arrays)
    model = {f"array{i}": array for i, array in enumerate(all_of(trainer, "tensorflow"))}
    np.savez(folder / "model.npz", **model)
    (folder / "curve.json").write_text(json.dumps([point.line("0000") for point in curve]))


if __name__ == "__main__":
    main()
