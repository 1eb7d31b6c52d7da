"""Runs one search of search_real.py, of raybench or another tool, as a command."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import real_task
import yaml

import raybench
from raybench.results.verdict import verdict_of

PATIENCE_S = 180.0
"""Time that a tool may take to end after its time budget."""
HERE = Path(__file__).parent
Search = dict[str, Any]
"""`tool`, `seed`, `wall_s`, and `ends`: for each ended trial the seconds since the command, config,
time to target, stop and phase. raybench's also has `named`, the configuration that it named
fastest, or None."""


def run_raybench(seed: int, trials: int, seconds: float, folder: Path) -> Search:
    """Run the command, and record when its lines of runs are written."""
    space = folder / "space.yaml"
    content = {
        "workload": "mnist_small",
        "dataset": real_task.DATASET.model_dump(exclude_none=True),
        "objective": real_task.OBJECTIVE.model_dump(),
        "search": {"trials": trials, "seed": seed, "time_budget_s": seconds},
        "space": real_task.SPACE,
        "fixed": {"eval_every_samples": real_task.EVAL_EVERY, "epochs": real_task.EPOCHS},
    }
    space.write_text(yaml.safe_dump(content, sort_keys=False))
    out = folder / "out"
    command = ["-m", "raybench.tune", str(space), "--out", str(out)]
    began = time.time()
    wall, times = _run(command, folder, seconds + PATIENCE_S, out / "records.jsonl")
    ends = []
    for when, text in times:
        record = json.loads(text)
        if record["kind"] == "run":
            line = real_task.end_line(
                record["spec"], record["time_to_target_s"], record["stop"] or record["failure"]
            )
            ends.append(line | {"time": when - began, "phase": record["phase"]})
    results = raybench.load(out)
    verdict = verdict_of(results)
    spec = None if verdict is None else results.specs[verdict.fastest]
    named = None if spec is None else {key: getattr(spec, key) for key in real_task.KEYS}
    return {"tool": "raybench", "seed": seed, "wall_s": wall, "ends": ends, "named": named}


def run_peer(tool: str, seed: int, trials: int, seconds: float, folder: Path) -> Search:
    """Run the script of another tool, which logs its ended trials."""
    log = folder / "ends.jsonl"
    command = [str(HERE / "real_peers.py"), tool.lower(), "--seed", str(seed)]
    command += ["--trials", str(trials), "--seconds", str(seconds), "--log", str(log)]
    began = time.time()
    wall, _ = _run(command, folder, seconds + PATIENCE_S)
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    ends = [line | {"time": line["time"] - began, "phase": "search"} for line in lines]
    return {"tool": tool, "seed": seed, "wall_s": wall, "ends": ends}


def _run(
    arguments: list[str], folder: Path, limit_s: float, follow: Path | None = None
) -> tuple[float, list[tuple[float, str]]]:
    """Return the wall seconds of a Python command, and when each line of a file appeared."""
    began, position = time.time(), 0
    lines: list[tuple[float, str]] = []
    environment = os.environ | {"RAY_ADDRESS": "local", "PYTHONPATH": str(HERE)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=log, stderr=log, cwd=folder, env=environment
        )
        while True:
            ended = process.poll() is not None
            if follow is not None and follow.exists():
                with follow.open() as stream:
                    stream.seek(position)
                    while (line := stream.readline()).endswith("\n"):
                        lines.append((time.time(), line))
                        position = stream.tell()
            if ended:
                break
            if time.time() - began > limit_s:
                process.terminate()
                process.wait(timeout=60)
                raise RuntimeError(f"{arguments} did not end; see {folder / 'log'}")
            time.sleep(0.1)
    if process.returncode:
        raise RuntimeError(f"{arguments} ended with {process.returncode}; see {folder / 'log'}")
    return time.time() - began, lines
