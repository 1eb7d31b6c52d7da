"""One worker of a group, as a script: trains a few steps without Ray and saves what came out.

python one_worker.py SPEC_JSON RANK OUT.npz PORT [PORT2 ...]: the ports of all workers.
Ends when OUT is written and its standard input is closed.
"""

import json
import os
import sys

import numpy as np

from raybench.backends.find import find_backend
from raybench.backends.run import take_until, training_steps
from raybench.core.spec import RunSpec
from raybench.workloads.find import load_workload_dataset


def main() -> None:
    spec = RunSpec.model_validate_json(sys.argv[1])
    rank, out, ports = int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    if spec.framework == "torch" and spec.num_workers > 1:
        import torch.distributed

        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{ports[0]}",
            rank=rank,
            world_size=spec.num_workers,
        )
    if spec.framework == "tensorflow":
        workers = [f"127.0.0.1:{port}" for port in ports]
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    backend = find_backend(spec.framework)
    world = backend.join(rank=rank, num_workers=spec.num_workers, device="cpu", num_threads=1)
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset)
    trainer = backend.Trainer(spec, workload, dataset, world)
    chunk, _ = take_until(training_steps(spec, dataset, world), round(2.5 * len(dataset.train)))
    trainer.warm_up(chunk[0])
    loss = trainer.train(chunk)
    middle = len(dataset.validation) // 3  # uneven shards
    shards = [slice(0, middle), slice(middle, None)] if spec.num_workers == 2 else [slice(0, None)]
    totals = trainer.evaluate("validation", shards[rank])
    sums = np.sum(world.gather([loss, totals.loss, totals.correct, float(totals.samples)]), axis=0)
    np.savez(out, *weights_of(trainer, spec.framework), sums=sums, steps=len(chunk))
    sys.stdin.read()  # until all have saved: group.py
    if spec.framework == "torch" and spec.num_workers > 1:
        torch.distributed.destroy_process_group()
    # Everything is on disk. A thread of gloo or TensorFlow that asks for the interpreter while
    # it is being torn down aborts the process (seen once in CI), so there is no tear-down.
    os._exit(0)


def weights_of(trainer: object, framework: str) -> list[np.ndarray]:
    model = trainer._model  # type: ignore[attr-defined]
    if framework == "torch":
        return [value.detach().numpy() for value in model.parameters()]
    return [variable.value.numpy() for variable in model.trainable_variables]


if __name__ == "__main__":
    main()
