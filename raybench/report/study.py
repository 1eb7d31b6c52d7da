"""Classes that `raybench.load` returns: `StudyResults`, a study with its tables, winners, figures
and summary, and `Studies`, several studies with joint tables."""

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import pandas as pd

from raybench.report.answer import html_of, lines_of, summary_of, table_html
from raybench.report.console import Sentences
from raybench.report.pairs import comparison_of
from raybench.report.words import settings_of
from raybench.results import analyses, ranking
from raybench.results.place import is_url, local_path, unique_names
from raybench.results.store import RECORDS_FILE, WINNERS, StudyKind
from raybench.results.study import Study
from raybench.results.verdict import TIED, verdict_of, verdicts_of, winners
from raybench.scaling.cells import scaling_cells, scaling_runs
from raybench.spec.documents import read_mapping
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import RunSpec
from raybench.spec.text import clean, command_line
from raybench.stats.record import Phase

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raybench.report.figures.parts import FigureKind
    from raybench.report.scaling_report import ScalingReport


@dataclass(frozen=True)
class Chosen:
    """A winning configuration of a study, with the command that trains it again."""

    trial: str
    spec: RunSpec
    label: str
    """Configuration in one line."""
    study: str
    """Name of the study."""
    folder: Path
    """Results folder of the study, or its local copy."""

    @property
    def command(self) -> str:
        """Command that trains this configuration again, from `best.yaml` or `cheapest.yaml` if one
        of them contains it."""
        files = [self.folder / name for name in WINNERS if (self.folder / name).is_file()]
        matching = [str(file) for file in files if read_mapping(file) == self.spec.complete()]
        return command_line("train", *(matching[:1] or arguments_of(self.spec)))

    def train(
        self,
        out: str | Path | None = None,
        *,
        address: str | None = None,
        say: bool = True,
        **changes: Any,
    ) -> "StudyResults":
        """Train this configuration again with `raybench.train`.

        `raybench.load_model(out)` then loads the model.

        Args:
            out: Results folder or URL; None for `results/train-STUDY-TRIAL`.
            address: Address of a Ray cluster, such as `auto`; None to start Ray on this machine.
            say: Whether to print the output.
            changes: Run-spec keys to change, as in `train(seed=1, epochs=20)`.

        Raises:
            UserError: The arguments are invalid.
            StudyError: The training fails.
        """
        import raybench  # late: this package may not import those that train

        name = re.sub(r"[^\w.-]", "-", f"{self.study}-{self.trial}").strip("-.")
        place = out if out is not None else f"results/train-{name}"
        quiet = contextlib.nullcontext() if say else contextlib.redirect_stdout(io.StringIO())
        with quiet:
            return raybench.train(self.spec, out=place, address=address, **changes)

    def __repr__(self) -> str:
        return f"trial {self.trial}: {self.label}\n{self.command}"


def arguments_of(spec: RunSpec) -> list[str]:
    """Return the arguments `--set KEY=VALUE` with which `raybench train` trains a run spec."""
    return [word for key, value in settings_of(spec) for word in ("--set", f"{key}={value}")]


class StudyResults(Study):
    """A study: the content of its results folder, and the results that are computed from it.

    Each attribute from `repeated` to `scaling_runs` is the cached result of a function of the same
    study; the docstring of the function describes the columns.
    """

    repeated = cached_property(ranking.repeated)
    confirmed = cached_property(ranking.confirmed)
    configurations = cached_property(ranking.configurations)
    verdicts = cached_property(verdicts_of)
    verdict = cached_property(verdict_of)
    comparison = cached_property(comparison_of)
    winners = cached_property(winners)
    importance = cached_property(analyses.importance_of)
    scaling = cached_property(scaling_cells)
    scaling_runs = cached_property(scaling_runs)

    @property
    def best(self) -> Chosen:
        """The winner, with `.spec`, `.trial`, `.command` and `.train()`.

        It is the fastest configuration or, without a target, the one with the best value; for a
        single training run, it is the configuration of that run.

        Raises:
            UserError: There is no winner.
        """
        return self._winner()

    @property
    def cheapest(self) -> Chosen:
        """The cheapest configuration (see `Verdict.cheapest`), with the same attributes as
        `best`."""
        return self._winner(is_cheapest=True)

    def _winner(self, *, is_cheapest: bool = False) -> Chosen:
        if self.kind is StudyKind.TRAINING and self.runs:
            trial = next(iter(self.runs))
        elif (verdict := verdict_of(self)) is not None:
            trial = verdict.cheapest if is_cheapest else verdict.fastest
        else:
            raise UserError(
                f"{self.place}: has no winner. {' '.join(summary_of(self).lines)}",
                ErrorCode.NO_RESULT,
            )
        spec = self.specs[trial]
        return Chosen(trial, spec, self.label(spec), self.name, self.folder)

    @property
    def answer(self) -> Sentences:
        """The conclusions, as on the terminal and on the page."""
        return Sentences(summary_of(self).lines)

    @property
    def how_sure(self) -> Sentences:
        """Sentences about the evidence for the winner, and about what more runs would show; empty
        if there is no winner."""
        return Sentences(filter(None, [summary_of(self).confidence]))

    @property
    def remarks(self) -> Sentences:
        """Sentences that limit the conclusions: about ties, disturbed runs, outliers, and values at
        the end of a range."""
        return Sentences(summary_of(self).caveats)

    @property
    def critical_batches(self) -> Sentences:
        """Sentences about the critical batch size of each series of a scaling study, estimated from
        the gradient noise."""
        from raybench.scaling.fits import noise_lines  # late: scipy takes half a second

        return Sentences(noise_lines(self))

    @property
    def claims(self) -> pd.DataFrame:
        """Claims of the published study that this study repeats, and whether they hold here.

        Columns: claim, published, here, holds. For all claims, see `raybench.published_claims`.
        """
        from raybench.report.scaling_report import claims_table  # matplotlib takes a second

        return claims_table(self)

    def predict(self, workers: "str | Sequence[int] | None" = None) -> "ScalingReport":
        """Fit models to the step times of a scaling study, and predict throughput.

        Args:
            workers: Worker counts such as `[4, 8]`, or a CSV file of worker counts and batch sizes,
                as for `--predict`. None for the last argument of `--predict` in this study or, if
                there was none, for two and four times the largest measured worker count.

        Returns:
            A report with `.words`, `.predictions` (a DataFrame) and `.plot()`.
        """
        from raybench.report.scaling_report import ScalingReport  # matplotlib takes a second

        if workers is not None and not isinstance(workers, str):
            workers = ",".join(map(str, workers))
        return ScalingReport.of(self, workers)

    @property
    def plot(self) -> "StudyPlots":
        """The figures, each of which is a method such as `plot.curves()`."""
        return StudyPlots(self)

    def best_at_every_budget(self) -> pd.DataFrame:
        """Return the best value that the search reached within each budget of training seconds.

        Columns: train_s, the name of the metric, trial; see `results.analyses`.
        """
        return analyses.best_at_every_budget(analyses.search_curves(self), self.metric)

    def ledger(self) -> pd.DataFrame:
        """Return the seconds and share of each phase (setup, train, ...), summed over all runs."""
        return analyses.ledger_totals(self.trials)

    def by_workers(self) -> pd.DataFrame:
        """Return the best configuration for each worker count.

        Columns: num_workers, tried, reached, trial, config, seconds, ...; see `results.analyses`.
        """
        return analyses.by_workers(self.configurations, self.metric)

    def speed_ups(self) -> pd.DataFrame:
        """Return the speed-up curves of a scaling study, one row per worker count.

        Columns: scaling, curve, num_workers, speedup, ideal, efficiency, ...; see
        `results.analyses`.
        """
        return analyses.speed_ups(self.scaling)

    def __repr__(self) -> str:
        return "\n".join(lines_of(self))

    def _repr_html_(self) -> str:
        return html_of(self)


load = StudyResults.load


class StudyPlots:
    """The figures of a study; each is a method that returns a matplotlib Figure.

    `dir(study.plot)` lists the figures that apply to the study.
    """

    def __init__(self, results: "StudyResults") -> None:
        self._results = results

    def __dir__(self) -> list[str]:
        return [name for name, kind in self._kinds.items() if kind.applies(self._results)]

    def __getattr__(self, name: str) -> "Callable[[], Figure]":
        kinds = {} if name.startswith("_") else self._kinds  # copy looks up such names
        if name not in kinds:
            raise AttributeError(f"study.plot: has no figure '{clean(name)}'; see dir(study.plot)")
        if not kinds[name].applies(self._results):
            raise UserError(
                f"study.plot.{name}: {self._results.place} has no data for this figure; figures "
                f"with data: {', '.join(dir(self)) or 'none yet'}.",
                ErrorCode.NO_RESULT,
            )
        return partial(kinds[name].draw, self._results)

    def __repr__(self) -> str:
        kinds = [(name, self._kinds[name]) for name in dir(self)]
        return "\n".join(f".{name}(): {kind.title}. {kind.reading}" for name, kind in kinds)

    @property
    def _kinds(self) -> "dict[str, FigureKind]":
        from raybench.report.figures import kinds_of  # late: matplotlib takes a second

        return kinds_of(self._results)


MOST_STUDIES_NAMED = 3
"""Maximum number of studies in subfolders that an error message lists."""

STUDY_COLUMN = "study"
STUDY_WINNER_COLUMNS = (
    *(STUDY_COLUMN, "metric", "target", "trial", "config", "num_workers", "is_confirmed"),
    *("seconds", "low_s", "high_s", "worker_seconds", "value", "ties", "trials"),
)


def load_any(place: "str | Path | Sequence[str | Path]") -> "StudyResults | Studies":
    """Load one study, or several; see `raybench.load`."""
    if isinstance(place, str | Path) or not isinstance(place, Iterable):
        return load_one(place)
    places = list(place)
    if not places:
        raise UserError(
            "raybench.load: the list is empty; name folders of studies.", ErrorCode.MISSING
        )
    return Studies([load_one(path) for path in places])


def load_one(place: str | Path) -> StudyResults:
    """Load one study.

    Raises:
        UserError: The folder contains no study; the message lists the studies in its subfolders.
    """
    text = str(place)
    if is_url(text):
        return load(text)
    folder = local_path(text)
    if folder.is_file():
        raise UserError(f"{folder}: is no study of raybench; name a folder.", ErrorCode.NOT_FOUND)
    if not (folder / RECORDS_FILE).is_file():
        folders = sorted(file.parent for file in folder.glob(f"*/{RECORDS_FILE}"))
        if folders:
            names = ", ".join(f"'{clean(str(path))}'" for path in folders[:MOST_STUDIES_NAMED])
            ellipsis = ", ..." if len(folders) > MOST_STUDIES_NAMED else ""
            raise UserError(
                f"{folder}: is no study, but {len(folders)} of its subfolders are; name one, or "
                f"several as in raybench.load([{names}{ellipsis}]).",
                ErrorCode.NOT_FOUND,
            )
    return load(folder)


class Studies(Sequence[StudyResults]):
    """Several studies, with joint tables in which the column `study` has the name of the study."""

    def __init__(self, studies: Sequence[StudyResults]) -> None:
        self._studies = tuple(studies)
        self.names = unique_names([(study.name, study.place) for study in studies])
        """Names of the studies; they are unique."""

    @overload
    def __getitem__(self, index: int | str) -> StudyResults: ...

    @overload
    def __getitem__(self, index: slice) -> "Studies": ...

    def __getitem__(self, index: int | str | slice) -> "StudyResults | Studies":
        if isinstance(index, slice):
            return Studies(self._studies[index])
        if isinstance(index, str):
            if index not in self.names:
                names = ", ".join(self.names)
                raise UserError(
                    f"There is no study '{clean(index)}'; there are {names}.",
                    ErrorCode.UNKNOWN_NAME,
                )
            index = self.names.index(index)
        return self._studies[index]

    def __len__(self) -> int:
        return len(self._studies)

    @property
    def trials(self) -> pd.DataFrame:
        """The runs of all studies; values are missing in columns that a study does not have."""
        return self._joined([study.trials for study in self])

    @property
    def curves(self) -> pd.DataFrame:
        """The evaluations of all studies."""
        return self._joined([study.curves for study in self])

    @property
    def confirmed(self) -> pd.DataFrame:
        """The confirmed configurations of all studies."""
        return self._joined([study.confirmed for study in self])

    @property
    def winners(self) -> pd.DataFrame:
        """Table of the winners, with one row per study.

        | column | meaning |
        |---|---|
        | study, metric, target | name and objective of the study |
        | trial, config, num_workers, is_confirmed | the winner; missing if there is none |
        | seconds, low_s, high_s | seconds to the target, and their 90 % interval if confirmed |
        | worker_seconds | num_workers x seconds |
        | value | best value of the metric |
        | ties | number of configurations tied with the winner |
        | trials | number of runs of the search |

        The seconds of studies with different targets, data or machines cannot be compared.
        """
        rows = [
            {STUDY_COLUMN: name} | winner_row(study) for name, study in self._names_and_studies()
        ]
        return pd.DataFrame(rows, columns=[*STUDY_WINNER_COLUMNS])

    @property
    def _counted(self) -> str:
        return "1 study" if len(self) == 1 else f"{len(self)} studies"

    def _names_and_studies(self) -> list[tuple[str, StudyResults]]:
        return list(zip(self.names, self, strict=True))

    def __repr__(self) -> str:
        lines = [f"{self._counted}: .winners, .trials, .curves, [0], ['{self.names[0]}']"]
        lines += [
            f"{clean(name)}: {' '.join(summary_of(study).lines)}"
            for name, study in self._names_and_studies()
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        answers = [" ".join(summary_of(study).lines) for study in self]
        rows = table_html(pd.DataFrame({"study": self.names, "answer": answers}))
        head = f"<p><strong>{self._counted}</strong></p>"
        return f'<div class="raybench-studies">{head}{rows}</div>'

    def _joined(self, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
        tables = []
        for name, frame in zip(self.names, frames, strict=True):
            if len(frame.columns):
                table = frame.copy()
                table.insert(0, STUDY_COLUMN, pd.Series(name, index=table.index, dtype=object))
                tables.append(table)
        filled = [frame for frame in tables if len(frame)] or tables[:1]
        return (
            pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=[STUDY_COLUMN])
        )


def winner_row(study: StudyResults) -> dict[str, Any]:
    """Return the row of `Studies.winners` for a study, without the column `study`."""
    row: dict[str, Any] = {"metric": study.metric.name, "target": study.target}
    row["trials"] = int((study.trials["phase"] == Phase.SEARCH).sum())
    if study.is_scaling or study.winners.empty:
        return row
    winner = study.winners.iloc[0]
    names = ("trial", "config", "num_workers", "is_confirmed", "seconds", "low_s", "high_s")
    row |= {name: winner[name] for name in (*names, "worker_seconds")}
    ties = int((study.winners["standing"] == TIED).sum())
    return row | {"value": winner[study.metric.best_column], "ties": ties}
