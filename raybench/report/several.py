"""Arguments of `raybench.load`: results folders and their URLs, one or several; and several studies
side by side: their frames in one, and what each found."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, overload

import pandas as pd

from raybench.report.answer import summary_of, table_html
from raybench.report.study import StudyResults, load
from raybench.results.place import is_url, local_path, unlike
from raybench.results.store import RECORDS_FILE
from raybench.results.verdict import TIED
from raybench.spec.errors import UserError
from raybench.spec.text import clean

MOST_NAMED = 3
"""Studies below a folder that a sentence names."""

STUDY = "study"
WINNER_COLUMNS = (
    *(STUDY, "metric", "target", "trial", "config", "num_workers", "is_confirmed"),
    *("seconds", "low_s", "high_s", "worker_seconds", "value", "ties", "trials"),
)


def load_any(place: "str | Path | Sequence[str | Path]") -> "StudyResults | Studies":
    """Read a study, or several; see `raybench.load`."""
    if isinstance(place, str | Path) or not isinstance(place, Iterable):
        return load_one(place)
    places = list(place)
    if not places:
        raise UserError("raybench.load: the list is empty; name folders of studies.")
    return Studies([load_one(one) for one in places])


def load_one(place: str | Path) -> StudyResults:
    """Read one study; UserError names what is there instead of one."""
    text = str(place)
    if is_url(text):
        return load(text)
    folder = local_path(text)
    if folder.is_file():
        raise UserError(f"{folder}: is no study of raybench; name a folder.")
    if folder.is_dir() and not (folder / RECORDS_FILE).is_file():
        _refuse(folder)
    return load(folder)


def _refuse(folder: Path) -> None:
    """Raise UserError for a folder that holds no study, naming those below it."""
    below = sorted(one.parent for one in folder.glob(f"*/{RECORDS_FILE}"))
    if below:
        named = ", ".join(f"'{clean(str(one))}'" for one in below[:MOST_NAMED])
        more = ", ..." if len(below) > MOST_NAMED else ""
        raise UserError(
            f"{folder}: is no study itself, below it are {len(below)}: name one, or several, as in "
            f"raybench.load([{named}{more}])."
        )


class Studies(Sequence[StudyResults]):
    """Studies that were loaded together; of the frames, the column `study` says whose a row is."""

    def __init__(self, studies: Sequence[StudyResults]) -> None:
        self._studies = tuple(studies)
        self.names = unlike([(one.name, one.place) for one in studies])
        """A name for each, which no other has."""

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
                raise UserError(f"There is no study '{clean(index)}'; there are {there}.")
            index = self.names.index(index)
        return self._studies[index]

    def __len__(self) -> int:
        return len(self._studies)

    @property
    def trials(self) -> pd.DataFrame:
        """The runs of all; a column of another study's metric is missing there."""
        return self._joined([one.trials for one in self])

    @property
    def curves(self) -> pd.DataFrame:
        """The evaluations of all."""
        return self._joined([one.curves for one in self])

    @property
    def confirmed(self) -> pd.DataFrame:
        """The configurations that ran again."""
        return self._joined([one.confirmed for one in self])

    @property
    def scaling(self) -> pd.DataFrame:
        """The cells of those that are scaling studies."""
        return self._joined([one.scaling if one.is_scaling else pd.DataFrame() for one in self])

    @property
    def winners(self) -> pd.DataFrame:
        """One row per study: what it found.

        | column | holds |
        |---|---|
        | study, metric, target | which, and what it is judged by |
        | trial, config, num_workers, is_confirmed | its winner; missing where there is none |
        | seconds, low_s, high_s | to the target, and the 90 % interval if confirmed |
        | worker_seconds | num_workers x seconds |
        | value | best value of the metric |
        | ties | how many others are statistically tied with it |
        | trials | runs of the search |

        Seconds of studies with other targets, data or machines are no comparison.
        """
        rows = [{STUDY: name} | winner_row(one) for name, one in self._named()]
        return pd.DataFrame(rows, columns=[*WINNER_COLUMNS])

    def best_at_every_budget(self) -> pd.DataFrame:
        """Return what each search reached at every budget of seconds: study, train_s, value, trial.

        `value` is of the metric that all are judged by; UserError where they are not.
        """
        names = {one.metric.name for one in self}
        if len(names) > 1:
            raise UserError(
                f"The studies are judged by {' and '.join(sorted(names))}; compare those of one."
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
                own.insert(0, STUDY, pd.Series(name, index=own.index, dtype=object))
                named.append(own)
        full = [frame for frame in named if len(frame)] or named[:1]
        return pd.concat(full, ignore_index=True) if full else pd.DataFrame(columns=[STUDY])


def winner_row(study: StudyResults) -> dict[str, Any]:
    """Return a study's row of `Studies.winners`, without its name."""
    row: dict[str, Any] = {"metric": study.metric.name, "target": study.target}
    row["trials"] = int((study.trials["phase"] == "search").sum())
    if study.is_scaling or study.winners.empty:
        return row
    first = study.winners.iloc[0]
    names = ("trial", "config", "num_workers", "is_confirmed", "seconds", "low_s", "high_s")
    row |= {name: first[name] for name in (*names, "worker_seconds")}
    ties = int((study.winners["standing"] == TIED).sum())
    return row | {"value": first[study.metric.best_column], "ties": ties}
