"""Claim: from the command to the first training step takes at most 60 % of stock Ray's time.

*Stock*: a script as in Ray's documentation (a Tuner whose function builds a TorchTrainer and fits
it), until its worker has taken the first step. *raybench*: `python -m raybench.tune` with one
configuration that evaluates after one step of 64 samples, until that evaluation is written. Each
measurement has new processes and a new local Ray, alternating (ABAB).

    python benchmarks/speed/first_step.py [--rounds 3]

About three minutes. Exit 1 above the bar.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.output import conditions, write_lines

BAR = 0.6
ENVIRONMENT = os.environ | {"RAY_ADDRESS": "local"}
"""Without RAY_ADDRESS, stock Ray would use a cluster that an earlier program left running."""
LIMIT_S = 180.0
"""Time after which a local Ray is assumed not to start."""
STOCK = """
import sys
from pathlib import Path


def train_function(config):
    import torch
    from ray.train.torch import prepare_model

    model = prepare_model(torch.nn.Linear(784, 10))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(64, 784)).sum().backward()
    optimizer.step()
    Path(config["mark"]).touch()


def trainable(config):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    TorchTrainer(
        train_function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=config["folder"]),
    ).fit()


from ray import tune

tune.Tuner(
    tune.with_resources(trainable, {"CPU": 0.001}),
    param_space={"mark": sys.argv[1], "folder": sys.argv[2]},
    run_config=tune.RunConfig(storage_path=sys.argv[2]),
).fit()
"""
SPACE = """
objective: {target: 0.9, max_train_seconds: 5}
dataset: {name: digits, image_size: 28}
search: {trials: 1}
space: {framework: [torch], num_workers: [1]}
fixed: {batch_size_per_worker: 64, eval_every_samples: 64}
"""


def stock(folder: Path) -> float:
    script = folder / "stock.py"
    script.write_text(STOCK)
    mark = folder / "mark"
    return _time_until(mark, [sys.executable, str(script), str(mark), str(folder)], folder)


def raybench(folder: Path) -> float:
    space = folder / "space.yaml"
    space.write_text(SPACE)
    out = folder / "out"
    command = [sys.executable, "-m", "raybench.tune", str(space), "--out", str(out)]
    return _time_until(out / "records.jsonl", command, folder)


def _time_until(file: Path, command: list[str], folder: Path) -> float:
    """Return the seconds until `file` exists and, if it is not the mark, has content."""
    began = time.perf_counter()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=ENVIRONMENT)
        while not (file.exists() and (file.name == "mark" or file.stat().st_size)):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.perf_counter() - began < LIMIT_S, (folder / "log").read_text()
            time.sleep(0.02)
        seconds = time.perf_counter() - began
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"stock": [], "raybench": []}
    for _ in range(options.rounds):
        for name, measure in (("stock", stock), ("raybench", raybench)):
            with tempfile.TemporaryDirectory() as folder:
                times[name].append(measure(Path(folder)))
                print(name, f"{times[name][-1]:.1f} s", flush=True)
    ratios = [own / other for own, other in zip(times["raybench"], times["stock"], strict=True)]
    ratio = statistics.median(ratios)
    lines = [
        f"{name}: {statistics.median(v):.1f} s ({min(v):.1f} - {max(v):.1f}, n {len(v)})"
        for name, v in times.items()
    ]
    lines += [
        f"raybench / stock: {ratio:.2f} ({min(ratios):.2f} - {max(ratios):.2f}), bar {BAR}: "
        + ("met" if ratio <= BAR else "NOT MET"),
        conditions(),
    ]
    write_lines(Path(__file__).parents[1] / "results" / "first_step.md", lines)
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
