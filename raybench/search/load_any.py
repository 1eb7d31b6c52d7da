"""What `raybench.load` takes: results folders and their URLs, one or several; other tools' too."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from raybench.core.errors import UserError
from raybench.core.text import clean, shorten
from raybench.results.load import StudyResults, load
from raybench.results.other_study import (
    Mode,
    OtherStudy,
    is_database,
    is_optuna_place,
    is_tune_folder,
    read_tune,
)
from raybench.results.place import LONGEST_NAME, is_url, local_path
from raybench.results.several import Studies
from raybench.results.store import RECORDS_FILE, STUDY_FILE

MOST_NAMED = 3
"""Studies below a folder that a sentence names."""


def load_any(
    place: "str | Path | Sequence[str | Path]",
    *,
    metric: str | None = None,
    mode: Mode | None = None,
    time: str | None = None,
    study_name: str | None = None,
) -> StudyResults | OtherStudy | Studies:
    """Read a study, or several; see `raybench.load`."""
    if isinstance(place, str | Path) or not isinstance(place, Iterable):
        return load_one(place, metric=metric, mode=mode, time=time, study_name=study_name)
    places = list(place)
    if not places:
        raise UserError("raybench.load: the list is empty; name folders of studies.")
    return Studies(
        [
            load_one(one, metric=metric, mode=mode, time=time, study_name=study_name)
            for one in places
        ]
    )


def load_one(
    place: str | Path,
    *,
    metric: str | None = None,
    mode: Mode | None = None,
    time: str | None = None,
    study_name: str | None = None,
) -> StudyResults | OtherStudy:
    """Read one study, of whatever tool. A folder of raybench knows its own metric."""
    if not isinstance(place, str | Path):
        kind = type(place).__name__
        raise TypeError(f"raybench.load: takes a folder, a URL or a list of them, not {kind}.")
    text = str(place)
    if not is_url(text) and max(map(len, text.split("/"))) > LONGEST_NAME:
        raise UserError(f"{shorten(text, 60)}: is too long for a path; name a folder.")
    if not is_url(text) or is_database(text):
        text = text if is_database(text) else str(local_path(text))
        if is_optuna_place(text):
            if time is not None:
                raise UserError(f"{text}: time: Optuna records no seconds of a step; leave it out.")
            # Late: Optuna is slow to import, and most studies are not its.
            from raybench.search.sampling.optuna_read import read_optuna

            return read_optuna(text, study_name=study_name, metric=metric, mode=mode)
        folder = Path(text)
        if folder.is_dir() and not (folder / RECORDS_FILE).is_file():
            if is_tune_folder(folder):
                return read_tune(folder, metric=metric, mode=mode, time=time)
            _refuse(folder)
        elif folder.is_file():
            raise UserError(f"{text}: is no study of raybench, Ray Tune or Optuna; name a folder.")
    return load(text)


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
    if (folder / STUDY_FILE).is_file():
        raise UserError(
            f"{folder}: holds a {STUDY_FILE} and no {RECORDS_FILE}: nothing was recorded there, or "
            "the file was lost; restore it, or run the study."
        )
