"""A trial that was chosen: its spec, the command that trains it again, and the training."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybench.core.documents import read_mapping, validate
from raybench.core.errors import WRONG_INPUT, StudyError, UserError
from raybench.core.spec import RunSpec
from raybench.core.text import clean, command_line
from raybench.results.store import WINNERS

if TYPE_CHECKING:
    from raybench.results.load import StudyResults

SAID = "raybench: "
"""How the sentence begins that a command ends with."""
PARTS = ("dataset", "objective")
"""Keys that a command line gives whole: without it, they are other than a spec's usual ones."""


@dataclass(frozen=True)
class Chosen:
    """A trial of a study."""

    trial: str
    spec: RunSpec
    label: str
    """Its configuration in one line."""
    study: str
    """Name of its study."""
    folder: Path
    """Where the study is, or a copy of it."""

    @property
    def command(self) -> str:
        """The command that trains it again: by `best.yaml` of the study where it is that one."""
        given = arguments_of(self.spec)
        for name in WINNERS:
            file = self.folder / name
            if file.is_file() and read_mapping(file) == self.spec.document():
                given = [str(file)]
                break
        return command_line("train", *given)

    def train(
        self,
        out: str | Path | None = None,
        *,
        address: str | None = None,
        say: bool = True,
        **changes: Any,
    ) -> "StudyResults":
        """Train it again as `python -m raybench.train` does, and return what came of it.

        `out`: the results folder or URL; none is `results/train-STUDY-TRIAL`. `address`: a Ray
        cluster, `auto` for example; none starts one here. `changes` are keys of the run spec:
        `train(seed=1, epochs=20)`. Its output is printed (`say`). The model is read by
        `raybench.load_model(out)`. A process of its own does it: Ray stays out of this one.

        Raises UserError where the command refuses what it is asked, StudyError where it fails.
        """
        # Late: it reads what this module makes.
        from raybench.results.load import load

        place = str(out) if out is not None else f"results/train-{self.file_name}"
        spec = validate(RunSpec, self.spec.document() | changes, "train") if changes else self.spec
        command = [sys.executable, "-m", "raybench.train", *arguments_of(spec), "--out", place]
        command += ["--address", address] if address is not None else []
        _run(command, say=say)
        return load(place)

    @property
    def file_name(self) -> str:
        """Study and trial as a part of a file's name."""
        words = f"{self.study}-{self.trial}"
        return "".join(one if one.isalnum() or one in "-_." else "-" for one in words).strip("-.")

    def __repr__(self) -> str:
        return f"trial {self.trial}: {self.label}\n{self.command}"


def winner(results: "StudyResults", *, is_cheapest: bool = False) -> Chosen:
    """Return what won, or of a single training its run; UserError where nothing did."""
    if results.study["study"].get("run") and results.runs:
        return chosen(results, next(iter(results.runs)))
    verdict = results.verdict
    if verdict is None:
        # Late: it reads what this module makes.
        from raybench.results.answer import answer_of

        raise UserError(f"{results.place}: has no winner. {' '.join(answer_of(results))}")
    return chosen(results, verdict.cheapest if is_cheapest else verdict.fastest)


def chosen(results: "StudyResults", trial: str) -> Chosen:
    """Return a trial of a study; UserError where there is none of that name."""
    if trial not in results.runs:
        raise UserError(f"{results.place}: has no run '{clean(trial)}'; .trials lists them.")
    spec = results.specs[trial]
    return Chosen(trial, spec, results.label(spec), results.name, results.folder)


def arguments_of(spec: RunSpec) -> list[str]:
    """Return the `--set KEY=VALUE` of `raybench train` that make a spec from the defaults."""
    content, usual = spec.document(), RunSpec().document()
    for key in PARTS:
        content[key] = getattr(spec, key).model_dump(mode="json", exclude_defaults=True)
    content["dataset"] = {"name": spec.dataset.name} | content["dataset"]
    found = []
    for key, value in content.items():
        if key in PARTS or value != usual[key]:
            text = json.dumps(value, ensure_ascii=False)  # which is YAML, in one line
            found += ["--set", f"{key}={text}"]
    return found


def _run(command: list[str], *, say: bool) -> None:
    """Run a command, its output passed on line by line: a notebook shows no other process's."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        last = ""
        try:
            for line in process.stdout:
                last = clean(line).strip() or last
                if say:
                    print(line, end="", flush=True)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # it keeps what is recorded
            raise
        code = process.wait()
    if code:
        said = last.removeprefix(SAID)
        if code == WRONG_INPUT and said != last:
            raise UserError(said)
        raise StudyError(f"raybench train ended with code {code}: {said or 'it said nothing'}")
