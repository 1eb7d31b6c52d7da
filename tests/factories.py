"""Factories of made-up evaluations, run outcomes and run records."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raybench.cluster.layout import Capacity, Node
from raybench.cluster.signals import Interrupt
from raybench.commands import cli
from raybench.results.records import TORN, decoded, texts_of
from raybench.spec.objective import StopReason
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation, Failure, Role, RunOutcome, RunRecord

TWO_GPUS = Capacity((Node(16, 2),), 0.0)


def options_given(name: str, words: Sequence[str]) -> Any:
    """Return the options of a command parsed from command-line arguments."""
    return cli.options_of(name, cli.parser_of(name).parse_args(words))


def begun(seconds_ago: float) -> Interrupt:
    """Return the signals of a command whose time budget began some seconds ago."""
    interrupt = Interrupt()
    interrupt.began -= seconds_ago
    return interrupt


def read_lines(path: Path) -> list[Any]:
    """Return the decoded JSON lines of a file without an incomplete last line."""
    texts = texts_of(path)
    lines = [decoded(text, is_last=text is texts[-1]) for text in texts]
    return [line for line in lines if line is not TORN]


def evaluation(seconds: float = 1.0, *, index: int = 0, **changes: Any) -> Evaluation:
    """Return the evaluation after epoch `index` + 1 of 1,000 samples and after `seconds`."""
    values = {
        "index": index,
        "epoch": index + 1.0,
        "samples": 1000 * (index + 1),
        "train_s": seconds,
        "train_loss": 0.5,
        "value": 0.9,
        "learning_rate": 0.01,
        "samples_per_s": 1000.0,
    } | changes
    return Evaluation(**({"best_value": values["value"]} | values))


def outcome(
    seconds: float = 1.0, *, index: int = 0, failure: Failure | None = None, **changes: Any
) -> RunOutcome:
    """Return the outcome after evaluation `index`; it is over with a `stop` or a `failure`."""
    last = evaluation(seconds, index=index, **changes)
    return RunOutcome(
        evaluation=last,
        is_over=bool(last.stop or failure),
        failure=failure,
        message="made up" if failure else None,
        ledger={"train": seconds},
        baseline_value=0.1,
    )


def record(
    name: str = "0000",
    spec: RunSpec | None = None,
    seconds: float = 1.0,
    *,
    role: Role = "trial",
    source: str | None = None,
    stop: StopReason | None = "target",
    stopped_by: StopReason = "scheduler",
    failure: Failure | None = None,
    score: float | None = None,
    **changes: Any,
) -> RunRecord:
    """Return the record of a run that reached the target after `seconds`, unless `stop` is another.

    With `stop` None the run was ended by `stopped_by`. `score` overrides the computed score.
    """
    if stop == "target" and failure is None:
        changes = {"time_to_target_s": seconds} | changes
    last = outcome(seconds, failure=failure, stop=None if failure else stop, **changes)
    ended = last.record(name, spec or RunSpec(), role=role, source=source, stopped_by=stopped_by)
    return ended if score is None else replace(ended, score=score)


def wait_for(
    condition: Callable[[], Any],
    seconds: float = 600.0,
    *,
    problem: Callable[[], str | None] = lambda: None,
) -> Any:
    """Wait until a condition is true; return its value.

    The test fails after `seconds`, which are many because the machine may be busy, and as soon as
    `problem` returns a text.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        found = problem()
        assert found is None, found
        assert time.monotonic() < deadline, f"not true within {seconds} s"
        time.sleep(0.02)
    return value


def start_python(*code: str) -> "subprocess.Popen[str]":
    """Start a process of this repository that runs the pieces of code, one after the other."""
    return subprocess.Popen(
        [sys.executable, "-c", "".join(map(textwrap.dedent, code))],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
