"""Loading of one or several studies for `raybench.load`, and the joint tables of several."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import pandas as pd

from raybench.report.answer import summary_of, table_html
from raybench.report.study import StudyResults, load
from raybench.results.place import is_url, local_path, unlike
from raybench.results.store import RECORDS_FILE
from raybench.results.verdict import TIED
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.text import clean

MOST_STUDIES_NAMED = 3
"""Most studies below a folder that a message names."""

STUDY_COLUMN = "study"
STUDY_WINNER_COLUMNS = (
    *(STUDY_COLUMN, "metric", "target", "trial", "config", "num_workers", "is_confirmed"),
    *("seconds", "low_s", "high_s", "worker_seconds", "value", "ties", "trials"),
)


def load_any(place: "str | Path | Sequence[str | Path]") -> "StudyResults | Studies":
    """Load one study, or several: see `raybench.load`."""
    if isinstance(place, str | Path) or not isinstance(place, Iterable):
        return load_one(place)
    places = list(place)
    if not places:
        raise UserError(
            "raybench.load: the list is empty; name folders of studies.", ErrorCode.MISSING
        )
    return Studies([load_one(one) for one in places])


def load_one(place: str | Path) -> StudyResults:
    """Load one study; UserError if there is none, with the studies below the folder."""
    text = str(place)
    if is_url(text):
        return load(text)
    folder = local_path(text)
    if folder.is_file():
        raise UserError(f"{folder}: is no study of raybench; name a folder.", ErrorCode.NOT_FOUND)
    if not (folder / RECORDS_FILE).is_file():
        below = sorted(one.parent for one in folder.glob(f"*/{RECORDS_FILE}"))
        if below:
            named = ", ".join(f"'{clean(str(one))}'" for one in below[:MOST_STUDIES_NAMED])
            more = ", ..." if len(below) > MOST_STUDIES_NAMED else ""
            raise UserError(
                f"{folder}: is no study itself, below it are {len(below)}: name one, or several, "
                f"as in raybench.load([{named}{more}]).",
                ErrorCode.NOT_FOUND,
            )
    return load(folder)


class Studies(Sequence[StudyResults]):
    """A sequence of studies, and tables of all of them with the column `study`."""

    def __init__(self, studies: Sequence[StudyResults]) -> None:
        self._studies = tuple(studies)
        self.names = unlike([(one.name, one.place) for one in studies])
        """Unique names of the studies."""

    @overload
    def __getitem__(self, index: int | str) -> StudyResults: ...

    @overload
    def __getitem__(self, index: slice) -> "Studies": ...

    def __getitem__(self, index: int | str | slice) -> "StudyResults | Studies":
        if isinstance(index, slice):
            return Studies(self._studies[index])
        if isinstance(index, str):
            if index not in self.names:
                there = ", ".join(self.names)
                raise UserError(
                    f"There is no study '{clean(index)}'; there are {there}.",
                    ErrorCode.UNKNOWN_NAME,
                )
            index = self.names.index(index)
        return self._studies[index]

    def __len__(self) -> int:
        return len(self._studies)

    @property
    def trials(self) -> pd.DataFrame:
        """The runs of all studies; columns of another study's metric are missing values."""
        return self._joined([one.trials for one in self])

    @property
    def curves(self) -> pd.DataFrame:
        """The evaluations of all studies."""
        return self._joined([one.curves for one in self])

    @property
    def confirmed(self) -> pd.DataFrame:
        """The confirmed configurations of all studies."""
        return self._joined([one.confirmed for one in self])

    @property
    def scaling(self) -> pd.DataFrame:
        """The cells of all scaling studies."""
        return self._joined([one.scaling if one.is_scaling else pd.DataFrame() for one in self])

    @property
    def winners(self) -> pd.DataFrame:
        """One row per study, with its winner.

        | column | holds |
        |---|---|
        | study, metric, target | name and objective of the study |
        | trial, config, num_workers, is_confirmed | the winner; missing without one |
        | seconds, low_s, high_s | time to the target, and its 90 % interval if confirmed |
        | worker_seconds | num_workers x seconds |
        | value | best value of the metric |
        | ties | number of configurations tied with it |
        | trials | number of search runs |

        Seconds of studies with different targets, data or machines cannot be compared.
        """
        rows = [{STUDY_COLUMN: name} | winner_row(one) for name, one in self._named()]
        return pd.DataFrame(rows, columns=[*STUDY_WINNER_COLUMNS])

    def best_at_every_budget(self) -> pd.DataFrame:
        """Return the best value of each search at every budget of training seconds.

        Columns: study, train_s, value, trial. UserError if the studies have different metrics.
        """
        names = {one.metric.name for one in self}
        if len(names) > 1:
            raise UserError(
                f"The studies are judged by {' and '.join(sorted(names))}; compare those of one.",
                ErrorCode.CONFLICT,
            )
        found = [
            one.best_at_every_budget().rename(columns={one.metric.name: "value"}) for one in self
        ]
        return self._joined(found)

    @property
    def _counted(self) -> str:
        return "1 study" if len(self) == 1 else f"{len(self)} studies"

    def _named(self) -> list[tuple[str, StudyResults]]:
        return list(zip(self.names, self, strict=True))

    def __repr__(self) -> str:
        lines = [f"{self._counted}: .winners, .trials, .curves, [0], ['{self.names[0]}']"]
        lines += [
            f"{clean(name)}: {' '.join(summary_of(one).lines)}" for name, one in self._named()
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        answers = [" ".join(summary_of(one).lines) for one in self]
        rows = table_html(pd.DataFrame({"study": self.names, "answer": answers}))
        head = f"<p><strong>{self._counted}</strong></p>"
        return f'<div class="raybench-studies">{head}{rows}</div>'

    def _joined(self, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
        named = []
        for name, frame in zip(self.names, frames, strict=True):
            if len(frame.columns):
                own = frame.copy()
                own.insert(0, STUDY_COLUMN, pd.Series(name, index=own.index, dtype=object))
                named.append(own)
        full = [frame for frame in named if len(frame)] or named[:1]
        return pd.concat(full, ignore_index=True) if full else pd.DataFrame(columns=[STUDY_COLUMN])


def winner_row(study: StudyResults) -> dict[str, Any]:
    """Return a study's row of `Studies.winners` without its name."""
    row: dict[str, Any] = {"metric": study.metric.name, "target": study.target}
    row["trials"] = int((study.trials["phase"] == "search").sum())
    if study.is_scaling or study.winners.empty:
        return row
    first = study.winners.iloc[0]
    names = ("trial", "config", "num_workers", "is_confirmed", "seconds", "low_s", "high_s")
    row |= {name: first[name] for name in (*names, "worker_seconds")}
    ties = int((study.winners["standing"] == TIED).sum())
    return row | {"value": first[study.metric.best_column], "ties": ties}
