"""The command `raybench compare A B`: test whether configuration B is better than A, by pairs of
runs with the same seed.

The runs of a pair follow each other directly, in random order, so that a slow minute of the machine
affects both. After every pair, the sequential test in `stats.sequential` decides whether to stop.
"""

import fcntl
import hashlib
import json
import random
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from raybench.cluster.session import chosen_address
from raybench.cluster.signals import Interrupt
from raybench.data.dataset import Dataset
from raybench.data.store import shared_key
from raybench.report.console import say
from raybench.report.pairs import Pairs, Side, answer_lines, exit_code, pairs_of
from raybench.report.progress import ProgressDisplay, lines_for
from raybench.results.place import refuse_other_kind
from raybench.results.records import read_records
from raybench.results.store import COMPARISON, STUDY_FILE, StudyKind, study_kind, with_session
from raybench.runs.frame import CommandFrame, OpenStudy, checked_place
from raybench.runs.lifecycle import failed_before_training, single_runs
from raybench.runs.options import CompareOptions
from raybench.runs.preflight import (
    check_starts,
    check_task,
    first_values,
)
from raybench.runs.train import check_connected, for_this_machine
from raybench.runs.wait_watch import Deadline, live_session
from raybench.spec.dataset_spec import with_absolute_paths
from raybench.spec.documents import apply_settings, content_of, read_mapping, validate
from raybench.spec.errors import Ended, ErrorCode, UserError
from raybench.spec.own_loop import is_command, is_own_loop
from raybench.spec.run import RunSpec, describe, flat, label_keys
from raybench.spec.space import num_configurations
from raybench.spec.study import build_study
from raybench.stats.record import Phase, Role
from raybench.stats.sequential import ALPHA


@dataclass(frozen=True)
class Compared:
    """The sides (configurations) and settings of a comparison, checked before Ray starts."""

    sides: tuple[Side, ...]
    specs: dict[str, RunSpec]
    """Run specs keyed by the name of the side (A, B, ...). All have the same objective and
    evaluation interval."""
    datasets: dict[str, Dataset]
    """Datasets by their `shared_key`."""
    warnings: list[str]
    smallest: float
    """Smallest relative difference that matters to the user."""
    is_throughput: bool = False
    """Whether training throughput is compared instead of the objective (time to the target, or
    best value)."""
    errors: float = ALPHA
    """Error rate of the test in this comparison; below ALPHA if the comparison belongs to a
    `--session`."""

    @property
    def documents(self) -> dict[str, Any]:
        """Run specs of the sides as plain data."""
        return {name: spec.document() for name, spec in self.specs.items()}

    @property
    def digest(self) -> str:
        """Hash of the settings of the comparison: run specs, smallest difference and compared
        quantity."""
        compared = [self.documents, self.smallest, *["samples_per_s"] * self.is_throughput]
        text = json.dumps(compared, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def compare(options: CompareOptions, interrupt: Interrupt) -> Ended:
    """Run the `compare` command: compare configurations, write the records and print the answer.

    For the arguments, see `CommandFrame`. Returns how the command ended.
    """
    frame = CommandFrame(options, interrupt)
    place = checked_place(options, "results/compare")
    compared = check_sides(options)
    frame.say(*compared.warnings)
    if options.dry_run:
        _print_plan(frame.console, compared, options.runs, place)
        plan = {"specs": compared.documents, "most_pairs": options.runs, "results": place}
        return frame.planned(compared.warnings, plan)
    with frame.open(place) as opened:
        refuse_other_kind(place, opened.folder, StudyKind.COMPARISON)
        _refuse_other(opened, compared)
        if options.session:
            errors = errors_left(Path(options.session), compared.digest)
            compared = replace(compared, errors=errors)
        opened.begin()
        pairs = _run(options, compared, opened)
        is_interrupted = interrupt.is_set
        opened.write(opened.results())
        frame.say(*answer_lines(pairs), f"results: {opened.where}")
    return frame.ended(place, exit_code(pairs), is_interrupted=is_interrupted)


def check_sides(options: CompareOptions) -> Compared:
    """Read and check all sides; they must have the same objective and validation set."""
    if len(options.sides) < 2:
        raise UserError(
            "compare: name two configurations or more, such as A.yaml B.yaml.", ErrorCode.MISSING
        )
    specs, sources = dict[str, RunSpec](), dict[str, str]()
    settings = options.trained() | options.settings
    datasets, warnings, labels = dict[str, Dataset](), list[str](), dict[str, np.ndarray]()
    for number, side in enumerate(options.sides):
        name = chr(ord("A") + number)
        sources[name] = str(side) if isinstance(side, str | Path) else f"side {name}"
        spec, notes = read_side(side, sources[name], settings), list[str]()
        if chosen_address(options.address) is None:
            spec, notes = for_this_machine(spec)
        objective, dataset = check_task(spec, [spec.framework])
        notes += check_starts(spec)
        warnings += [note for note in notes if note not in warnings]
        specs[name] = spec.model_copy(update={"objective": objective})
        datasets[shared_key(spec.workload, spec.dataset, spec.data)] = dataset
        labels[name] = np.asarray(dataset.validation.labels)
    first = specs["A"]
    for name, spec in specs.items():
        for key in ("kind", "metric", "target", "hold"):
            ours, theirs = getattr(first.objective, key), getattr(spec.objective, key)
            if ours != theirs:
                raise UserError(
                    f"{sources[name]}: its objective.{key} is {theirs}, that of {sources['A']} is "
                    f"{ours}; set one for both: --set objective.{key}=...",
                    ErrorCode.CONFLICT,
                )
        if not np.array_equal(labels["A"], labels[name]):
            raise UserError(
                f"{sources[name]}: its validation rows are not those of {sources['A']}; compare on "
                "the same data.",
                ErrorCode.CONFLICT,
            )
    longest = max(spec.objective.max_train_seconds for spec in specs.values())
    objective = first.objective.model_copy(update={"max_train_seconds": longest})
    judged = {"objective": objective, "eval_every_samples": first.eval_every_samples}
    specs = {name: spec.model_copy(update=judged) for name, spec in specs.items()}
    flats = [flat(spec.without_defaults().document()) for spec in specs.values()]
    if all(is_own_loop(spec.workload) for spec in specs.values()):
        # The workload is already shown as the source of the side.
        flats = [values | {"workload": ""} for values in flats]
    keys = [
        key
        for key in dict.fromkeys(key for values in flats for key in values)
        if len({json.dumps(values.get(key)) for values in flats}) > 1
    ]
    sides = tuple(
        Side(name, sources[name], describe(spec, label_keys(dict.fromkeys(keys))))
        for name, spec in specs.items()
    )
    is_throughput = options.metric is not None
    return Compared(sides, specs, datasets, warnings, options.smallest, is_throughput)


def read_side(
    side: str | Path | dict[str, Any] | RunSpec, source: str, settings: Mapping[str, Any]
) -> RunSpec:
    """Return the run spec of one side of a comparison.

    Args:
        side: A run spec, the folder of a study, a search space with a single configuration, or a
            user's own training loop (`FILE.py:FUNCTION` or a command).
        source: Name of the side in error messages.
        settings: Changes to the run spec, as in `--set`.
    """
    if isinstance(side, str) and is_own_loop(side):
        content = {"workload": at_revision(side), "objective": RunSpec().objective.model_dump()}
        return validate(RunSpec, apply_settings(content, settings), source)
    file = Path(side) / STUDY_FILE if isinstance(side, str | Path) else None
    if file is not None and file.is_file() and study_kind(read_mapping(file)) is StudyKind.IMPORTED:
        raise UserError(
            f"{source}: holds imported runs, whose code and clock are not known; name a run spec.",
            ErrorCode.CONFLICT,
        )
    content, _ = content_of(side, source)
    if "space" not in content:
        return validate(RunSpec, with_absolute_paths(apply_settings(content, settings)), source)
    study, space = build_study(with_absolute_paths(content), source)
    number = num_configurations(space, study.fixed)
    if number != 1:
        count = "endless" if number is None else str(number)
        raise UserError(
            f"{source}: has {count} configurations; compare takes one: fix the others, or name the "
            "best.yaml of a search.",
            ErrorCode.CONFLICT,
        )
    document = study.run_spec(first_values(study, space)).document()
    return validate(RunSpec, apply_settings(document, settings), source)


def at_revision(side: str) -> str:
    """Resolve a side that names a git revision: `HEAD~1:train.py:train` -> `COPY/train.py:train`.

    COPY is a cache folder with a copy of all files at that revision. A side without a revision is
    returned unchanged.

    Raises:
        UserError: Git fails, for example because there is no such revision.
    """
    revision, _, path = side.rpartition(".py:")[0].partition(":")
    if is_command(side) or not path:
        return side
    commit = _git(side, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    prefix = _git(side, "rev-parse", "--show-prefix")
    import pooch  # slow to import, and needed only here

    folder = Path(pooch.os_cache("raybench")) / "revisions" / commit
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            archive = Path(temporary) / "tree.tar"
            top = _git(side, "rev-parse", "--show-toplevel")
            _git(side, "-C", top, "archive", f"--output={archive}", commit)
            # Python before 3.11.4, as in Debian 12, has no filters.
            safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            with tarfile.open(archive) as tree:
                tree.extractall(Path(temporary) / "tree", **safely)
            (Path(temporary) / "tree").replace(folder)
    return f"{folder / prefix / path}.py:{side.rpartition(':')[2]}"


def _git(side: str, *arguments: str) -> str:
    try:
        process = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(
            f"{side}: git cannot be run ({error.strerror}).", ErrorCode.NOT_INSTALLED
        ) from None
    if process.returncode:
        errors = process.stderr.strip().splitlines() or ["there is no such revision"]
        raise UserError(
            f"{side}: {errors[-1]}; write it REVISION:FILE.py:FUNCTION, in a repository.",
            ErrorCode.NOT_FOUND,
        )
    return process.stdout.strip()


def _print_plan(console: Console, compared: Compared, pairs: int, place: str) -> None:
    for side in compared.sides:
        say(console, f"{side.name}  {side.label}  ({side.source})")
    seconds = len(compared.specs) * pairs * compared.specs["A"].objective.max_train_seconds
    say(
        console,
        f"up to {pairs} runs of each side with common seeds, one at a time, at most "
        f"{seconds:,.0f} s of training; ends as soon as it is decided",
    )
    say(console, f"results: {place}")


def _refuse_other(opened: OpenStudy, compared: Compared) -> None:
    """Raise UserError if the folder holds a comparison with other settings."""
    if opened.study_file is None:
        return
    earlier = opened.earlier[COMPARISON]
    requested = compared.documents, compared.smallest, compared.is_throughput
    if (earlier["specs"], earlier["smallest"], earlier.get("is_throughput", False)) != requested:
        raise UserError(
            f"{opened.place}: holds another comparison; name another place with --out.",
            ErrorCode.STUDY_CHANGED,
        )


def _run(options: CompareOptions, compared: Compared, opened: OpenStudy) -> Pairs:
    """Run pairs until the comparison is decided, `--runs` pairs are done, or the time budget is
    used up.

    Returns:
        All pairs, including those of earlier sessions.
    """
    objective = compared.specs["A"].objective
    console, interrupt, store = opened.frame.console, opened.frame.interrupt, opened.store

    def so_far() -> Pairs:
        records = read_records(store.folder)
        return pairs_of(
            compared.sides,
            objective,
            records.runs,
            records.curves,
            smallest=compared.smallest,
            errors=compared.errors,
            is_throughput=compared.is_throughput,
        )

    with live_session(options.address, interrupt, console) as session:
        for spec in compared.specs.values():
            check_connected(session, spec, console)
        store.write_yaml(
            STUDY_FILE,
            {
                "study": {"objective": objective.model_dump(mode="json")},
                COMPARISON: {
                    "specs": compared.documents,
                    "sides": [vars(side) for side in compared.sides],
                    "smallest": compared.smallest,
                    "errors": compared.errors,
                    "is_throughput": compared.is_throughput,
                },
                "notes": session.notes,
                **with_session(opened.earlier, cluster=session.capacity.document()),
            },
        )
        session.share(compared.datasets)
        deadline = Deadline(options.time_budget, interrupt=interrupt)
        number_of_runs = options.runs * len(compared.sides)
        progress = ProgressDisplay(
            console, num_trials=number_of_runs, lines=lines_for(options.progress)
        )
        pairs = so_far()
        interrupt.can_continue = True
        with (
            progress,
            single_runs(session, store, deadline, progress, wait_s=options.wait) as single_run,
        ):
            progress.begin(Phase.COMPARE, number_of_runs)
            for number in range(options.runs):
                if pairs.is_decided or deadline.over:
                    break
                for name in order_of(compared.specs, number, seed=options.seed or 0):
                    if number in pairs.runs[name] or deadline.over:
                        continue
                    seed = (options.seed or 0) + number
                    spec = compared.specs[name].model_copy(update={"seed": seed})
                    record = single_run.train(spec, f"{name}-{number:03d}", Role.PAIR, source=name)
                    if record.is_start_failure:
                        # Every side is needed, so a comparison ends with the first such run.
                        subject, why = f"a run of {name}", record.message or ""
                        deadline.ends_with(failed_before_training(subject, why))
                pairs = so_far()
        deadline.raise_fault()
    return pairs


def order_of(names: Mapping[str, object], number: int, *, seed: int) -> list[str]:
    """Return the random order in which the sides run in pair `number`.

    It depends only on the seed and the number, so that a resumed comparison has the same order.
    """
    return random.Random(f"{seed}/{number}").sample(list(names), len(names))


def errors_left(file: Path, digest: str) -> float:
    """Return the error rate of a comparison that belongs to a `--session`, and record it in the
    session file.

    The j-th comparison in the file gets the rate ALPHA / (j (j + 1)), so that the sum of all rates
    never exceeds ALPHA. A resumed comparison keeps its rate. Comparisons that run in parallel may
    use the same file.

    Args:
        file: The session file.
        digest: Hash of the comparison.

    Raises:
        UserError: The file is not a session file, or cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+") as session:
            fcntl.flock(session, fcntl.LOCK_EX)
            session.seek(0)
            digests = [json.loads(line)["of"] for line in session.read().splitlines()]
            order = list(dict.fromkeys([*digests, digest]))
            place = order.index(digest) + 1
            errors = ALPHA / (place * (place + 1))
            if digest not in digests:
                session.write(json.dumps({"of": digest, "errors": errors}) + "\n")
    except OSError as error:
        raise UserError(
            f"--session {file}: cannot be written ({error.strerror}).", ErrorCode.NOT_WRITABLE
        ) from None
    except (ValueError, LookupError, TypeError):
        raise UserError(
            f"--session {file}: is not a session file; name another.", ErrorCode.INVALID_FILE
        ) from None
    return errors
