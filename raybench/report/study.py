"""The study that `raybench.load` returns: its tables, its winner, its figures, and itself in words.

`Chosen` is a trial of it: its spec, the command that trains it again, and the training.
"""

import contextlib
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from raybench.report.answer import html_of, lines_of, summary_of
from raybench.report.console import Sentences
from raybench.report.pairs import Pairs, comparison_of
from raybench.results import analyses, ranking, verdict
from raybench.results.ranking import Repeated
from raybench.results.store import WINNERS
from raybench.results.study import Study
from raybench.results.verdict import Verdict, judge, judge_each
from raybench.scaling.cells import scaling_cells, scaling_runs
from raybench.spec.documents import read_mapping
from raybench.spec.errors import UserError, did_you_mean
from raybench.spec.metric import Metric
from raybench.spec.run import RunSpec
from raybench.spec.text import clean, command_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raybench.report.figures.kinds import FigureKind
    from raybench.report.scaling_report import ScalingReport

PARTS = ("dataset", "objective")
"""Keys that a command line always gives whole: their defaults there differ from a spec's."""


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
    """Folder of the study, or of a copy of it."""

    @property
    def command(self) -> str:
        """The command that trains it again: by `best.yaml` of the study where it is that one."""
        files = [self.folder / name for name in WINNERS if (self.folder / name).is_file()]
        own = [str(one) for one in files if read_mapping(one) == self.spec.complete()]
        return command_line("train", *(own[:1] or arguments_of(self.spec)))

    def train(
        self,
        out: str | Path | None = None,
        *,
        address: str | None = None,
        say: bool = True,
        **changes: Any,
    ) -> "StudyResults":
        """Train it again by `raybench.train`, and return what came of it.

        `out`: the results folder or URL; none is `results/train-STUDY-TRIAL`. `address`: a Ray
        cluster, `auto` for example; none starts one here. `changes` are keys of the run spec:
        `train(seed=1, epochs=20)`. Its output is printed (`say`). The model is read by
        `raybench.load_model(out)`.

        Raises UserError where it refuses what it is asked, StudyError where it fails.
        """
        import raybench  # what trains is above, and found when it is asked for

        name = re.sub(r"[^\w.-]", "-", f"{self.study}-{self.trial}").strip("-.")
        place = out if out is not None else f"results/train-{name}"
        quiet = contextlib.nullcontext() if say else contextlib.redirect_stdout(io.StringIO())
        with quiet:
            return raybench.train(self.spec, out=place, address=address, **changes)

    def __repr__(self) -> str:
        return f"trial {self.trial}: {self.label}\n{self.command}"


def arguments_of(spec: RunSpec) -> list[str]:
    """Return the `--set KEY=VALUE` of `raybench train` that make a spec from the defaults."""
    content, default = spec.document(), RunSpec().document()
    for key in PARTS:
        content[key] = getattr(spec, key).model_dump(mode="json", exclude_defaults=True)
    content["dataset"] = {"name": spec.dataset.name} | content["dataset"]
    asked = {key: one for key, one in content.items() if key in PARTS or one != default[key]}
    # JSON is YAML, in one line.
    given = [f"{key}={json.dumps(one, ensure_ascii=False)}" for key, one in asked.items()]
    return [word for one in given for word in ("--set", one)]


class StudyResults(Study):
    """Content of a results folder, and what follows from it."""

    @property
    def repeated(self) -> dict[str, Repeated]:
        """The configurations that were trained again; see `results.ranking`."""
        return ranking.repeated(self)

    @property
    def confirmed(self) -> pd.DataFrame:
        """One row per confirmed configuration, best first; see `results.ranking.confirmed`."""
        return ranking.confirmed(self)

    @property
    def configurations(self) -> pd.DataFrame:
        """One row per configuration, confirmed ones first: what to sort and compare.

        See `raybench.results.ranking.configurations` for the columns.
        """
        return ranking.configurations(self)

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """The winners among the runs on each model of GPU; see `results.verdict.judge_each`."""
        return judge_each(self)

    @property
    def verdict(self) -> Verdict | None:
        """The winners by trial, and what is statistically tied with them; None where none won."""
        return judge(self)

    @property
    def comparison(self) -> Pairs | None:
        """Result of `raybench.compare`, `.comparisons["B"].outcome`; None of other studies."""
        return comparison_of(self)

    @property
    def winners(self) -> pd.DataFrame:
        """The winner and all that is statistically tied with it; see `results.verdict.winners`."""
        return verdict.winners(self)

    @property
    def best(self) -> Chosen:
        """The winner: `.spec`, `.trial`, `.command`, `.train()`; UserError where none won."""
        return self._winner()

    @property
    def cheapest(self) -> Chosen:
        """The cheapest winner, with what `best` has: see `Verdict.cheapest`."""
        return self._winner(is_cheapest=True)

    def _winner(self, *, is_cheapest: bool = False) -> Chosen:
        if self.study["study"].get("run") and self.runs:
            trial = next(iter(self.runs))
        elif (verdict := judge(self)) is not None:
            trial = verdict.cheapest if is_cheapest else verdict.fastest
        else:
            raise UserError(f"{self.place}: has no winner. {' '.join(summary_of(self).lines)}")
        spec = self.specs[trial]
        return Chosen(trial, spec, self.label(spec), self.name, self.folder)

    @property
    def answer(self) -> Sentences:
        """Answer, as the terminal and the page say it."""
        return Sentences(summary_of(self).lines)

    @property
    def how_sure(self) -> Sentences:
        """Basis of the answer, and what would make it surer; empty where nothing won."""
        return Sentences(filter(None, [summary_of(self).confidence]))

    @property
    def remarks(self) -> Sentences:
        """Limits of the answer: ties, disturbed runs, the end of a searched range, outliers."""
        return Sentences(summary_of(self).caveats)

    @property
    def scaling(self) -> pd.DataFrame:
        """One row per cell of a scaling study; see `raybench.scaling.cells`."""
        return scaling_cells(self)

    @property
    def scaling_runs(self) -> pd.DataFrame:
        """One row per run of a scaling study; see `raybench.scaling.runs`."""
        return scaling_runs(self)

    @property
    def critical_batches(self) -> Sentences:
        """Critical batch of each series by the noise of its gradients."""
        from raybench.scaling.fits import noise_lines  # late: scipy takes half a second

        return Sentences(noise_lines(self))

    @property
    def claims(self) -> pd.DataFrame:
        """Published claims of a named study, and whether they held here;
        `raybench.published_claims()` has those of all studies. Columns: claim, published, here,
        holds."""
        from raybench.report.scaling_report import claims_table  # late, as the next one

        return claims_table(self)

    def predict(self, workers: str | None = None) -> "ScalingReport":
        """Fit a model to a scaling study's steps and predict: at numbers of workers ("4,8"; none:
        twice and four times the most measured) or the cells of a file, as `--predict` does.

        The answer has `.words`, `.predictions` (a DataFrame), `.plot()`.
        """
        from raybench.report.scaling_report import ScalingReport  # matplotlib takes a second

        return ScalingReport.of(self, workers)

    @property
    def plot(self) -> "StudyPlots":
        """Its figures by name: `plot.curves()`; `dir(study.plot)` lists them."""
        return StudyPlots(self)

    @property
    def importance(self) -> pd.DataFrame:
        """Hyperparameter importance, most first; see `analyses`."""
        return analyses.importance_of(self)

    def best_at_every_budget(self) -> pd.DataFrame:
        """Return what the search reached at every budget of training seconds.

        Columns: train_s, the metric's name, trial; see `analyses`.
        """
        return analyses.best_at_every_budget(analyses.search_curves(self), self.metric)

    def ledger(self) -> pd.DataFrame:
        """Return where the seconds of all runs went; see `analyses`."""
        return analyses.ledger_totals(self.trials)

    def time_to(self, target: float | None = None) -> pd.DataFrame:
        """Return when each run of the search reached a target; none: the study's own.

        Columns: trial, seconds, is_interpolated; see `analyses`.
        """
        return analyses.time_to_target(*self._asked(target), **self._crossing())

    def around_target(self, target: float | None = None) -> pd.DataFrame:
        """Return who is first at the target, and at one a point easier and one a point harder.

        Columns: target, trial, seconds, reached, trials; see `analyses`.
        """
        return analyses.around_target(*self._asked(target), **self._crossing())

    def by_workers(self) -> pd.DataFrame:
        """Return the best configuration of each number of workers, fewest first.

        Columns: num_workers, tried, reached, trial, config, seconds, ...; see `analyses`.
        """
        return analyses.by_workers(self.configurations, self.metric)

    def speed_ups(self) -> pd.DataFrame:
        """Return the speed-up curves of a scaling study, one row per number of workers.

        Columns: scaling, curve, num_workers, speedup, ideal, efficiency, ...; see `analyses`.
        """
        return analyses.speed_ups(self.scaling)

    def _asked(self, target: float | None) -> tuple[pd.DataFrame, Metric, float]:
        found = self.target if target is None else target
        if found is None:
            raise UserError("The study asked for no target; name one: study.time_to(0.95).")
        return analyses.search_curves(self), self.metric, found

    def _crossing(self) -> dict[str, Any]:
        return {"hold": self.hold, "baseline_value": self.value_at_start}

    def __repr__(self) -> str:
        return "\n".join(lines_of(self))

    def _repr_html_(self) -> str:
        return html_of(self)


def load(folder: str | Path, files: Sequence[str] = ()) -> StudyResults:
    """Read a results folder: see `Study.load`."""
    return StudyResults.load(folder, files)


class NoFigureError(UserError, AttributeError):
    """There is no figure of that name."""


class StudyPlots:
    """The figures of one study: names of `figures.kinds_of`, each a method that returns a Figure.

    `dir(study.plot)` lists those that it has something for.
    """

    def __init__(self, results: "StudyResults") -> None:
        self._results = results

    def __dir__(self) -> list[str]:
        return [name for name, kind in self._kinds.items() if kind.applies(self._results)]

    def __getattr__(self, name: str) -> "Callable[[], Figure]":
        if name.startswith("_"):
            raise AttributeError(name)  # what notebooks and copy ask of any object
        kinds = self._kinds
        if name not in kinds:
            hint = did_you_mean(name, kinds)
            raise NoFigureError(f"study.plot: has no figure '{clean(name)}'; {hint}")
        return lambda: self._drawn(name, kinds[name])

    def __repr__(self) -> str:
        shown = [(name, self._kinds[name]) for name in dir(self)]
        return "\n".join(f".{name}(): {kind.title}. {kind.reading}" for name, kind in shown)

    def _drawn(self, name: str, kind: "FigureKind") -> "Figure":
        if not kind.applies(self._results):
            there = ", ".join(dir(self)) or "none yet"
            raise UserError(
                f"study.plot.{name}: {self._results.place} has nothing for it to show; those that "
                f"it has something for: {there}."
            )
        return kind.draw(self._results)

    @property
    def _kinds(self) -> "dict[str, FigureKind]":
        from raybench.report.figures.kinds import kinds_of  # late: matplotlib takes a second

        return kinds_of(self._results)
