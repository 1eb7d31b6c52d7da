"""The study that a command line asks for: a file, a named study, or the default one."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raybench.core.dataset_spec import with_whole_paths
from raybench.core.documents import validate
from raybench.core.errors import UserError
from raybench.core.scaling_file import build_scaling_study, load_scaling_content, set_in_scaling
from raybench.core.scaling_study import ScalingStudy
from raybench.core.text import clean
from raybench.scaling.named.find import STUDIES

DEFAULT_NAME = "scaling"
DEFAULT: dict[str, Any] = {"base": {"dataset": {"name": "digits", "image_size": 28}}}
"""Without a study: the shipped small model on real digits, weak and strong, all workers."""
QUICK: dict[str, Any] = {"repeats": 2}
"""What `--quick` changes of the default study."""


@dataclass(frozen=True)
class Chosen:
    """A study, and where it comes from."""

    study: ScalingStudy
    source: str
    """For messages."""
    is_named: bool = False
    """Whether it is one of `raybench.scaling.named`."""


def chosen_study(options: argparse.Namespace) -> Chosen:
    """Return the study of a command line, `--set` and the other flags applied."""
    flags = {"base.workload": options.workload, "seed": options.seed}
    settings = [f"{key}={value}" for key, value in flags.items() if value is not None]
    settings += options.settings
    asked: str | None = options.study
    if asked is None:
        content = with_whole_paths(
            set_in_scaling(DEFAULT | (QUICK if options.quick else {}), settings)
        )
        source = "the default study"
        return Chosen(build_scaling_study(content, source, name=DEFAULT_NAME), source)
    if Path(asked).suffix or Path(asked).exists():
        if options.quick:
            raise UserError(
                "--quick is for the named studies; shorten a study of yours by --set repeats=1 or "
                "--set epochs=2."
            )
        content = with_whole_paths(load_scaling_content(Path(asked), settings))
        name = _name_of(Path(asked))
        return Chosen(build_scaling_study(content, asked, name=name), asked)
    if asked not in STUDIES:
        raise UserError(
            f"{clean(asked)}: is no file and no named study; named are: {', '.join(STUDIES)}."
        )
    content = set_in_scaling(STUDIES[asked].study(options.quick).document(), settings)
    return Chosen(validate(ScalingStudy, content, asked), asked, is_named=True)


def _name_of(path: Path) -> str:
    """Return a study's name from its file's, with what no name may have as dashes."""
    kept = [one if (one.isalnum() and one.isascii()) or one in "_-" else "-" for one in path.stem]
    return "".join(kept)[:60] or DEFAULT_NAME
