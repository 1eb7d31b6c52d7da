"""What to do after a study, each step with its command: the end of the screen and of the page."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from raybench.core.confirm_spec import ConfirmSpec
from raybench.core.text import clean
from raybench.results.how_sure import more_runs
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked
from raybench.results.verdict import Verdict
from raybench.results.words import counted

COMMAND = "python -m raybench.tune SPACE"
EXPLAIN = "python -m raybench.explain"
PAGE = "report.html"
RESULTS = "results"
"""The folder that a study is written into where no --out was given."""


@dataclass(frozen=True)
class Step:
    """One of them."""

    what: str
    """What it brings, in a few words."""
    do: str
    """The command, or the file to open."""


def next_steps(results: StudyResults, verdict: Verdict | None) -> list[Step]:
    """Return what there is to do, the most useful first; commands are the study's own."""
    steps = []
    if verdict is not None:
        steps += _use(results, verdict)
    if (results.folder / PAGE).is_file():
        steps.append(Step("pictures, every trial", str(results.folder / PAGE)))
    if verdict is not None:
        steps += _more(results, verdict)
    left = _go_on(results)
    if left and steps and steps[-1].do == left[0].do:  # one command does both
        return [*steps[:-1], Step(f"{left[0].what}, confirm", left[0].do)]
    return [*steps, *left]


def _use(results: StudyResults, verdict: Verdict) -> list[Step]:
    best = results.folder / "best.yaml"
    cheap = results.folder / "cheapest.yaml"
    steps = [Step("train it, keep the model", f"python -m raybench.train {shlex.quote(str(best))}")]
    if verdict.fastest != verdict.cheapest:
        command = f"python -m raybench.train {shlex.quote(str(cheap))}"
        steps.append(Step("or the cheapest", command))
    return steps


def _more(results: StudyResults, verdict: Verdict) -> list[Step]:
    """Return the step that makes the verdict surer, if there is one."""
    if not verdict.is_confirmed:
        is_tried = bool(results.repeated)  # what ran again missed: once more is no help
        return [] if is_tried else [Step("confirm it by new runs", _confirming_command(results))]
    number = more_runs(results, verdict)
    if number is None:
        return []
    ties = len(verdict.ties) - 1
    what = f"tell it from the {counted(ties, 'other')}" if ties else "repeat what ran once"
    return [Step(what, f"{_own_command(results)} --more {number}")]


def _go_on(results: StudyResults) -> list[Step]:
    """Return the step that searches on, where trials are left."""
    asked = (results.study["study"].get("search") or {}).get("trials")
    done = int((results.trials["role"] == "trial").sum())
    if not isinstance(asked, int) or done >= asked or not len(ranked(results.trials)):
        return []
    return [Step(f"run the {counted(asked - done, 'trial')} left", _own_command(results))]


def _confirming_command(results: StudyResults) -> str:
    """Return the study's own command so that it confirms: `--more` is for what is confirmed."""
    given = re.sub(r" --no-confirm(?= |$)", "", _own_command(results))
    asked = results.study["study"].get("confirm")
    is_unasked = isinstance(asked, dict) and asked.get("race") == 0
    return f"{given} --confirm race={ConfirmSpec().race}" if is_unasked else given


def _own_command(results: StudyResults) -> str:
    """Return the study's own command, on the folder that its results are in now."""
    given = clean(str(results.study.get("command", "")))
    if "raybench.tune" not in given:
        given = COMMAND
    is_fresh = bool(re.search(r" --fresh(?= |$)", given))
    if (
        is_fresh
    ):  # a new folder is not what it shall begin, nor is the folder the one that was named
        given = re.sub(r" --out[ =][^\s'\"]+(?= |$)", "", given)
        given = re.sub(r" --fresh(?= |$)", "", given)
    is_moved = " --out" not in given and Path(results.place).parent.name != RESULTS
    return f"{given} --out {shlex.quote(results.place)}" if is_fresh or is_moved else given
