"""Turn the options of `raybench tune` into the study that will run.

There are three steps. `study_content` applies the options to the search-space file, without looking
at the machine. `resolve_study` fills in defaults, drops what does not fit this machine, and checks
the model and the data. `ResolvedStudy.continued` adopts the settings of an earlier session.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from raybench.cluster.layout import Capacity
from raybench.data.dataset import Dataset
from raybench.results.place import (
    is_url,
    refuse_other_study,
    shipped_space,
    unused_folder,
)
from raybench.results.storage import check_place, unused_url
from raybench.results.store import STUDY_FILE
from raybench.runs import preflight
from raybench.runs.options import TuneOptions
from raybench.search.reference import earlier_settings
from raybench.search.sampling.default_rates import check_grid, first_specs
from raybench.search.sampling.earlier import Earlier, load_earlier, settings_of
from raybench.search.study_plan import StudyPlan
from raybench.spec.dataset_spec import with_absolute_paths
from raybench.spec.documents import content_of, read_mapping
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.run import RunSpec
from raybench.spec.space import Space
from raybench.spec.study import COMMON, EVAL_INTERVAL, StudySpec, build_study, load_content

Content = dict[str, Any]


def study_content(options: TuneOptions) -> tuple[Content, str, str]:
    """Apply the options to the search-space file.

    Returns:
        - The study as plain data.
        - The path of the file, for error messages.
        - The name of the study.
    """
    if options.more is not None and options.more < 1:
        raise UserError(
            f"--more {options.more}: the number of runs must be at least 1.",
            ErrorCode.INVALID_VALUE,
        )
    space = options.space
    if isinstance(space, str):
        space = shipped_space(space) or Path(space)
    source = str(space) if isinstance(space, Path) else "space"
    content = with_absolute_paths(load_content(space, options.study_settings()))
    is_shipped = isinstance(options.space, str) and shipped_space(options.space) is not None
    if is_shipped and options.command is not None and "framework" in content.get("space", {}):
        raise UserError(
            f"--command: the space {options.space} is for raybench's own models; name a space file "
            "that lists what to vary, as in docs/models.md.",
            ErrorCode.MISSING,
        )
    content = _with_firsts(content, options.first)
    path = Path(source)
    return content, source, path.parent.name if path.name == STUDY_FILE else path.stem


STUDY_WIDE_KEYS = (*COMMON, "seed", EVAL_INTERVAL)
"""Run-spec keys that the study sets for all its runs. They are ignored in a run spec or file given
by `--first`."""


def _with_firsts(
    content: Content, given: Sequence[str | Path | dict[str, Any] | RunSpec]
) -> dict[str, Any]:
    """Return the study with the configurations of `--first` appended to `search.first`."""
    firsts = []
    for configuration in given:
        spec = content_of(configuration, "first")[0]
        if not isinstance(configuration, dict):  # a file or run spec also has study-wide keys
            spec = {key: value for key, value in spec.items() if key not in STUDY_WIDE_KEYS}
        if not spec:
            raise UserError(
                "--first: contains no key of a configuration; set at least one, such as "
                "learning_rate.",
                ErrorCode.MISSING,
            )
        firsts.append(spec)
    if not firsts:
        return content
    search = content.get("search") or {}
    return content | {"search": search | {"first": [*(search.get("first") or []), *firsts]}}


@dataclass(frozen=True)
class ResolvedStudy:
    """A valid study with its space, data and results folder, ready to run."""

    study: StudySpec
    space: Space
    dataset: Dataset
    place: str
    """Results folder or URL."""
    sentences: tuple[str, ...]
    """One sentence for each choice made for the user and for each warning."""
    earlier: Earlier | None = None
    """Results of an earlier study, given by `--seed-from`."""
    taken_sentences: tuple[str, ...] = ()
    """One sentence for each setting that comes from the results of `--seed-from`."""

    @cached_property
    def plan(self) -> StudyPlan:
        """Plan of the search: sampled keys, placements and number of trials."""
        return StudyPlan.of(self.study, self.space)

    def continued(self, file: Path | None) -> Self:
        """Return the study with settings taken from an earlier session and from `--seed-from`.

        Args:
            file: `study.yaml` of the earlier session; None if there was none.

        Raises:
            UserError: The file describes another study.
        """
        study = self.study
        if file is not None:
            study = earlier_settings(study, read_mapping(file))
            refuse_other_study(self.place, file, study)
        taken_sentences: list[str] = []
        if self.earlier is not None:
            study, taken_sentences = settings_of(self.earlier, study)
        return replace(self, study=study, taken_sentences=tuple(taken_sentences))


def resolve_study(options: TuneOptions, capacity: Capacity | None) -> ResolvedStudy:
    """Return the study described by the options.

    Settings from an earlier session are not applied yet; see `ResolvedStudy.continued`.

    Args:
        options: Options of the command.
        capacity: Resources of this machine; None if the study runs on a cluster.

    Raises:
        UserError: The study is invalid, or no worker group fits on this machine.
    """
    content, source, name = study_content(options)
    preflight.check_address(options.address)
    place = check_place(options.out or f"results/{name}")
    sentences: list[str] = []
    if isinstance(options.space, str) and shipped_space(options.space):
        content, sentences = preflight.drop_uninstalled_frameworks(content)
    study, space = build_study(content, source)
    if capacity is not None:
        # Worker counts in a file are reduced to fit, because files are shared between machines.
        # Worker counts on the command line are meant for this machine.
        is_named = options.workers is not None or any(
            "num_workers" in key for key in options.settings
        )
        content, more_sentences = preflight.with_gpus(
            content, study, space, capacity, all_workers=is_named
        )
        study, space = build_study(content, source)
        sentences += more_sentences
        if not is_named:
            content, more_sentences = preflight.drop_worker_counts_without_room(
                content, study, space, capacity
            )
            study, space = build_study(content, source)
            sentences += more_sentences
        sentences += preflight.check_room(
            study, space, capacity, first_specs(study, space).values()
        )
        preflight.check_gpus(preflight.groups(study, space))
    study, dataset, warnings = preflight.check_study(study, space)
    preflight.check_evaluations(study, dataset)
    check_grid(study, space)
    if options.fresh:
        place = unused_url(place) if is_url(place) else str(unused_folder(Path(place)))
    earlier = load_earlier(options.seed_from, study) if options.seed_from else None
    return ResolvedStudy(study, space, dataset, place, (*sentences, *warnings), earlier)
