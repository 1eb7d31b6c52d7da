"""One rank of clock_skew.py's group without Ray: trains, told to go on later than the others.

    python skew_rank.py SPEC_JSON RANK DELAYS_S_JSON OUT.json PORT PORT

Every rank is told to go on at the same moment; the last rank hears of it later, by the delays in
turns. Writes a list of [delay, seconds of training until the next evaluation], and ends when its
standard input does (a rank that leaves first closes sockets that another still reads from).
"""

import itertools
import json
import os
import sys
import time
from pathlib import Path

import skew_workload

from raybench.backends.find import find_backend
from raybench.backends.run import run
from raybench.core.clock import Ledger
from raybench.core.spec import RunSpec
from raybench.data.load import load_dataset


def main() -> None:
    spec = RunSpec.model_validate_json(sys.argv[1])
    rank, delays, out, ports = int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4], sys.argv[5:]
    if spec.framework == "torch":
        import torch.distributed

        address = f"tcp://127.0.0.1:{ports[0]}"
        torch.distributed.init_process_group(
            "gloo", init_method=address, rank=rank, world_size=spec.num_workers
        )
    else:
        workers = [f"127.0.0.1:{port}" for port in ports]
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    backend = find_backend(spec.framework)
    world = backend.join(rank=rank, num_workers=spec.num_workers, device="cpu", num_threads=1)
    dataset = load_dataset(spec.dataset)
    ledger = Ledger("setup")
    trainer = backend.Trainer(spec, skew_workload.Skewed(), dataset, world)
    upcoming, delay_s, train_s = itertools.cycle(delays), 0.0, 0.0
    found = []
    for evaluation in run(spec, dataset, trainer, world, ledger):
        found.append([delay_s, evaluation.train_s - train_s])
        train_s, delay_s = evaluation.train_s, next(upcoming)
        if rank == spec.num_workers - 1:
            time.sleep(delay_s)
    Path(out).write_text(json.dumps(found))
    sys.stdin.read()
    # A thread of gloo or TensorFlow that asks for the interpreter while it is torn down aborts
    # the process; all is on disk.
    os._exit(0)


if __name__ == "__main__":
    main()
