"""A study's place as the user names it: a folder, `file://`, or the URL of an object store."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from raybench.core.errors import UserError
from raybench.results.bucket import check_url
from raybench.results.study_folder import check_folder


def is_url(place: str | Path) -> bool:
    """Return whether this is the URL of an object store, not a folder."""
    return "://" in str(place) and urlsplit(str(place)).scheme != "file"


def local_path(place: str | Path) -> Path:
    """Return the folder of a path or of `file://`."""
    if not str(place).startswith("file://"):
        return Path(place)
    parts = urlsplit(str(place))
    if parts.netloc not in ("", "localhost"):
        raise UserError(f"--out {place}: is on another host; write file:///FOLDER of this one.")
    return Path(unquote(parts.path))


def check_place(place: str) -> str:
    """Return a URL as it is, or the folder that a path or `file://` names.

    UserError if results cannot be written there, as far as that is seen without asking a store.
    """
    if is_url(place):
        check_url(place)
        return place
    folder = local_path(place)
    check_folder(folder)
    return str(folder)


def shown(place: str, folder: Path) -> str:
    """Return where results are, in words: `folder` holds what is in `place`, or is it."""
    return f"{place} (on this machine: {folder})" if is_url(place) else str(folder)
