"""Search-space file that `raybench init` writes, based on a summary of the user's data."""

import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.data.summary import DataSummary
from raybench.spec.documents import parse_yaml
from raybench.spec.metric import DEFAULTS, METRICS
from raybench.spec.text import clean, command_line

FRAMEWORKS = ("torch", "tensorflow")  # names of the packages
SMALL_PIXELS = 96  # larger side up to which raybench's own image networks are suggested
PLAIN = re.compile(r"[\w./+:-]+(?: [\w./+-]+)*")
"""Pattern of strings that need no quotes in YAML, unless YAML reads them as another type."""
MAX_WORKERS = 8
MIN_BATCHES_PER_EPOCH = 16  # minimum number of batches per epoch
MAX_BATCH_SIZE = {"table": 2048, "running text": 256}  # by kind of data; 512 for others


@dataclass(frozen=True, kw_only=True)
class StarterModel:
    """Suggested frameworks and workload for a search-space file."""

    frameworks: list[str]
    workload: str
    comment: str
    """Comment for the search-space file, which describes the workload and names alternatives."""


def start_for(
    summary: DataSummary, framework: str | None, workload: str | None = None
) -> StarterModel:
    """Suggest frameworks and a workload for the user's data.

    Args:
        summary: Summary of the data.
        framework: Framework to use; None to use all installed frameworks.
        workload: Workload to use; None to choose one that suits the data.
    """
    # Only looked up, because importing a framework is slow.
    installed = [name for name in FRAMEWORKS if importlib.util.find_spec(name)]
    frameworks = [framework] if framework else installed or list(FRAMEWORKS)
    choices = {
        "texts": ("text_bag", "the mean of a text's words; or transformers:PATH"),
        "running text": ("char_lm", "a small transformer; or module:Class of your own"),
    }
    choice = choices.get(summary.kind)
    if workload is not None:
        choice = workload, "your own class"
    elif choice is None and summary.kind != "table" and len(summary.input_shape or ()) == 3:
        choice = _image_workload(summary.input_shape or ())
    name, comment = choice or ("mlp", "three hidden layers; or module:Class of your own")
    return StarterModel(frameworks=frameworks, workload=name, comment=comment)


def _image_workload(shape: Sequence[int]) -> tuple[str, str]:
    """Return a workload for images of shape (H, W, C), and a comment that describes it."""
    size = max(shape[:2])
    if size <= 32 and shape[2] == 1:
        return "mnist_small", "one convolution; or small_resnet"
    if size <= SMALL_PIXELS:
        return "small_resnet", "eight convolutions; or torchvision:resnet18"
    return "mobilenet_v2", "the same network in both frameworks; or resnet50"


def _powers(low: int, high: int) -> list[int]:
    """Return the powers of two from `low` (itself a power of two) to `high`; [low] if `high` is
    smaller."""
    return [low * 2**step for step in range(max(1, (high // low).bit_length()))]


def space_text(summary: DataSummary, start: StarterModel, *, file: Path) -> str:
    """Return the content of a search-space file as YAML with comments.

    Args:
        summary: Summary of the data.
        start: Suggested frameworks and workload.
        file: Path of the file, for the commands that its comments show.
    """
    metric = METRICS[DEFAULTS[summary.task]]
    other_names = [
        other.name
        for other in METRICS.values()
        if summary.task in other.tasks and other.name != metric.name
    ]
    batches = _powers(
        4,
        min(
            MAX_BATCH_SIZE.get(summary.kind, 512),
            max(8, summary.num_train // MIN_BATCHES_PER_EPOCH),
        ),
    )
    smallest, largest = max(4, batches[-1] // 32), batches[-1]
    affinity = getattr(os, "sched_getaffinity", None)  # only on Linux
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    direction = "at least" if metric.direction == "max" else "at most"
    lines = [
        f"# {clean(summary.lines[0])}",
        f"# Task: {summary.task.replace('_', ' ')}.",
        f"#   {command_line('tune', file, '--dry-run')}    prints the plan, starts nothing",
        f"#   {command_line('tune', file)}",
        f"workload: {_value(start.workload)}  # {start.comment}",
        "dataset:",
        *(f"  {key}: {_value(value)}" for key, value in summary.dataset.items()),
        "objective:",
        "  kind: time_to_target  # or best_at_budget: the best within max_train_seconds",
        f"  metric: {metric.name}  # or {', '.join(other_names)}",
        f"  target: auto  # set by reference runs; or a number, {direction} this {metric.words}",
        "  max_train_seconds: 120  # limit for each trial",
        "search: {trials: 60, time_budget_s: 3600, seed: 0}  # budget: start-up to confirmation",
        "confirm: {race: 24, fresh: 3}  # runs with new seeds: of the best, of a winner alone",
        "space:",
        f"  framework: [{', '.join(start.frameworks)}]",
        f"  num_workers: {_powers(1, min(MAX_WORKERS, cores))}  # one core per worker",
        f"  batch_size_per_worker: {{low: {smallest}, high: {largest}, log2: true}}",
        "  optimizer: [adam, radam, lars, lamb]",
        "  learning_rate:",
        "    - {when: {optimizer: [adam, radam, lamb]}, low: 1.0e-4, high: 3.0e-2, log: true}",
        "    - {when: {optimizer: lars}, low: 1.0e-2, high: 10.0, log: true}",
        "fixed: {warmup_epochs: 1, precision: fp32}",
    ]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return a value as YAML on one line, quoting strings that YAML would read as another type."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    text = str(value)
    is_plain = PLAIN.fullmatch(text) and parse_yaml(f"key: {text}", "key") == {"key": value}
    return text if is_plain else json.dumps(value)
