"""Runs raybench's commands as a user does, from this checkout or from another one.

A benchmark that compares the code before and after a change takes `--tree PATH` for every
checkout to measure (`git worktree add PATH COMMIT` makes one) and runs them in turns; what it
reads are files that both write alike (`records.jsonl`) and the screen.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OWN = HERE.parents[1]
"""This checkout."""


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    wall_s: float
    code: int
    printed: str
    """What it printed, both streams."""


def add_tree_option(parser: argparse.ArgumentParser) -> None:
    """Add `--tree`; `trees` reads it."""
    parser.add_argument(
        "--tree",
        type=Path,
        action="append",
        metavar="PATH",
        help="checkout whose code is measured; repeat it to compare (default: this one)",
    )


def trees(options: argparse.Namespace) -> dict[str, Path]:
    """Return the checkouts to measure by a name for the table; ends with 2 if one is none."""
    found = {}
    for path in [path.resolve() for path in options.tree or [OWN]]:
        if not (path / "raybench" / "__init__.py").is_file():
            print(f"--tree {path}: no checkout of raybench.", file=sys.stderr)
            sys.exit(2)
        found[f"{path.name} {commit(path)}"] = path
    return found


def commit(tree: Path) -> str:
    """Return a checkout's short commit, with a star where files were changed since."""
    try:
        words = ["git", "-C", str(tree), "describe", "--always", "--dirty=*"]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "?"
    return done.stdout.strip()


def environment(tree: Path, **more: str) -> dict[str, str]:
    """Return the environment in which `python -m raybench...` is the code of `tree`.

    The benchmarks' folder is on the path too: users' own workloads lie in it.
    """
    own = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return own | {"PYTHONPATH": os.pathsep.join([str(tree), str(HERE)])} | more


def raybench(
    tree: Path,
    *arguments: str | Path,
    cwd: Path,
    limit_s: float,
    cores: int | None = None,
    **more: str,
) -> Done:
    """Run `python -m raybench.COMMAND ...` of a checkout to its end.

    `cores` binds it, and all it starts, to so many cores.
    """
    name, *rest = map(str, arguments)
    command = [sys.executable, "-m", f"raybench.{name}", *rest]
    if cores is not None:
        command = ["taskset", "-c", f"0-{cores - 1}", *command]
    log = cwd / "log"
    began = time.perf_counter()
    with log.open("w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd, env=environment(tree, **more)
        )
        try:
            process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # it writes its results and ends Ray
            process.wait(timeout=120)
            raise
    wall_s = time.perf_counter() - began
    return Done(wall_s, process.returncode, log.read_text(errors="replace"))


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a results folder's records, of any version."""
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def runs(folder: Path) -> list[dict[str, Any]]:
    """Return the records of finished runs."""
    return [record for record in records(folder) if record["kind"] == "run"]
