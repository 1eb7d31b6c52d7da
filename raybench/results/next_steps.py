"""What to do after a study, each step with its command: the end of the screen and of the page."""

from dataclasses import dataclass
from pathlib import Path, PurePath

from raybench.core.confirm_spec import ConfirmSpec
from raybench.core.text import clean, command_line, split_command
from raybench.results.how_sure import more_runs
from raybench.results.load import StudyResults
from raybench.results.ranking import ranked
from raybench.results.verdict import Verdict
from raybench.results.words import counted

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


def again(results: StudyResults, name: str, *arguments: object) -> str:
    """Return a command of ours about a study, in the words in which that was begun."""
    return command_line(name, *arguments, given=str(results.study.get("command", "")))


def _use(results: StudyResults, verdict: Verdict) -> list[Step]:
    best = again(results, "train", results.folder / "best.yaml")
    cheap = again(results, "train", results.folder / "cheapest.yaml")
    steps = [Step("train it, keep the model", best)]
    if verdict.fastest != verdict.cheapest:
        steps.append(Step("or the cheapest", cheap))
    return steps


def _more(results: StudyResults, verdict: Verdict) -> list[Step]:
    """Return the step that makes the verdict surer, if there is one."""
    if not verdict.is_confirmed:
        is_tried = bool(results.repeated)  # what ran again missed: once more is no help
        return [] if is_tried else [Step("confirm it by new runs", _confirming_command(results))]
    number = more_runs(results, verdict)
    if number is None:
        return []
    ties = {*verdict.others(), *verdict.others(is_cheapest=True)}
    what = f"settle {counted(len(ties), 'tie')}" if ties else "repeat what ran once"
    return [Step(what, _own_command(results, "--more", str(number)))]


def _go_on(results: StudyResults) -> list[Step]:
    """Return the step that searches on, where trials are left."""
    asked = (results.study["study"].get("search") or {}).get("trials")
    done = int((results.trials["role"] == "trial").sum())
    if not isinstance(asked, int) or done >= asked or not len(ranked(results.trials)):
        return []
    return [Step(f"run the {counted(asked - done, 'trial')} left", _own_command(results))]


def _confirming_command(results: StudyResults) -> str:
    """Return the study's own command so that it confirms: `--more` is for what is confirmed."""
    asked = results.study["study"].get("confirm")
    is_unasked = isinstance(asked, dict) and asked.get("race") == 0
    more = ["--confirm", f"race={ConfirmSpec().race}"] if is_unasked else []
    return _own_command(results, *more, without="--no-confirm")


def _own_command(results: StudyResults, *more: str, without: str = "") -> str:
    """Return the study's own command, on the folder that its results are in now, and `more`."""
    given = split_command(clean(str(results.study.get("command", ""))))
    while given and PurePath(given[0]).name not in ("tune", "raybench.tune"):
        given.pop(0)
    given = [word for word in given[1:] if word != without] if given else ["SPACE"]
    is_fresh = "--fresh" in given
    if is_fresh:
        # A new folder is not what it shall begin, nor is the folder the one that was named.
        given = [
            word
            for word, before in zip(given, ["", *given], strict=False)
            if before != "--out" and word != "--out" and not word.startswith("--out=")
        ]
        given.remove("--fresh")
    is_named = any(word.startswith("--out") for word in given)
    if is_fresh or (not is_named and Path(results.place).parent.name != RESULTS):
        given += ["--out", results.place]
    return again(results, "tune", *given, *more)
