"""The command `raybench train`: train one run spec, and save the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from raybench.cluster.layout import local_capacity
from raybench.cluster.session import Session, chosen_address
from raybench.cluster.signals import Interrupt
from raybench.data.dataset import NO_DATA, Dataset
from raybench.models.find import load_workload_dataset
from raybench.models.model_data import ModelData
from raybench.report.progress import CurveLines, ProgressDisplay, lines_for
from raybench.report.words import digits, target_words
from raybench.results.place import refuse_other_kind
from raybench.results.records import read_records
from raybench.results.store import (
    RECORDS_FILE,
    STUDY_FILE,
    TRAINING,
    Store,
    StudyKind,
    with_session,
)
from raybench.runs.frame import CommandFrame, OpenStudy, checked_place
from raybench.runs.lifecycle import has_checkpoints, single_runs
from raybench.runs.options import SpecOptions, TrainOptions
from raybench.runs.preflight import (
    GPUS,
    check_cluster,
    check_gpus,
    check_starts,
    check_task,
    spec_on_gpus,
)
from raybench.runs.wait_watch import Deadline, RunLines, live_session
from raybench.scaling.cells import run_rates
from raybench.spec.dataset_spec import with_absolute_paths
from raybench.spec.documents import apply_settings, content_of, to_yaml, validate
from raybench.spec.errors import DONE, FAILED, Ended
from raybench.spec.objective import StopReason
from raybench.spec.own_loop import framework_of, is_own_loop
from raybench.spec.run import RunSpec, describe
from raybench.spec.text import seconds_text
from raybench.stats.checkpoint import spec_digest
from raybench.stats.clock import OTHER, PHASES
from raybench.stats.record import Evaluation, Role, RunRecord, State
from raybench.training.own import state_of
from raybench.training.saved import DATA_FILE, MODEL_FILES, STATE_FILES

TRIAL = "0000"


def train(options: TrainOptions, interrupt: Interrupt) -> Ended:
    """Run the `train` command: train a run, save the model and print the results.

    For the arguments, see `CommandFrame`. Returns how the command ended.
    """
    frame = CommandFrame(options, interrupt)
    place, spec, dataset, sentences = check_run(options, read_spec(options), "train")
    sentences += check_starts(spec)
    frame.say(*sentences)
    if options.dry_run:
        frame.console.print(to_yaml(spec.document()), soft_wrap=True)
        if dataset is not NO_DATA:
            frame.console.print(f"{dataset.num_train_samples:,} training samples an epoch")
        return frame.planned(sentences, spec.document())
    with frame.open(place) as opened:
        refuse_other_kind(place, opened.folder, StudyKind.TRAINING)
        if (finished := finished_run(opened.folder, TRIAL, spec)) is not None:
            frame.say(
                f"{place}: this run is finished; to train it again, name another folder with --out."
            )
            _print_outcome(opened, finished, read_records(opened.folder).curves)
            return Ended(DONE, place)
        opened.begin(resumes=False)
        record = _run(options, spec, opened)
        results = opened.results()
        pages = opened.write(results)
        _print_outcome(opened, record, results.evaluations)
        frame.say(*(f"page: {page}" for page in pages))
        has_checkpoint = has_checkpoints(opened.folder, TRIAL)
    return frame.ended(
        place,
        FAILED if record.failure else DONE,
        is_interrupted=record.stop == StopReason.INTERRUPTED,
        can_resume=has_checkpoint,
    )


def read_spec(options: SpecOptions) -> RunSpec:
    """Return the run spec that the command-line options describe."""
    seed = {} if options.seed is None else {"seed": options.seed}
    settings = seed | options.trained() | options.settings
    if options.spec is None:
        defaults, source = RunSpec().document(), "run spec"
        content = {key: defaults[key] for key in ("dataset", "objective")}
        if settings.keys() & {"dataset", "dataset.name"}:
            del content["dataset"]  # the default's image size is for its own dataset, the digits
    else:
        content, source = content_of(options.spec, "run spec")
    content = apply_settings(content, settings)
    if (framework := framework_of(str(content.get("workload", "")))) is not None:
        content = {"framework": framework} | content
    return validate(RunSpec, with_absolute_paths(content), source)


def check_run(
    options: SpecOptions, spec: RunSpec, command: str
) -> tuple[str, RunSpec, Dataset, list[str]]:
    """Check the run of a command before Ray starts.

    Returns:
        - Results folder.
        - Run spec with a complete objective and with the GPUs per worker set.
        - Dataset.
        - Sentences about the use of GPUs.
    """
    name = "default" if options.spec is None else "spec"
    if isinstance(options.spec, str | Path):
        name = Path(options.spec).stem
    place, sentences = checked_place(options, f"results/{command}-{name}"), list[str]()
    if chosen_address(options.address) is None:
        spec, sentences = for_this_machine(spec)
    ours = not names_target(options)
    objective, dataset = check_task(spec, [spec.framework], is_target_ours=ours)
    return place, spec.model_copy(update={"objective": objective}), dataset, sentences


def for_this_machine(spec: RunSpec) -> tuple[RunSpec, list[str]]:
    """Set the GPUs per worker of a run spec for this machine, unless the user has set them.

    Returns:
        - The run spec.
        - Sentences about the use of GPUs.

    Raises:
        UserError: The workers do not fit on this machine, or a framework does not see the GPUs.
    """
    capacity = local_capacity()
    spec, sentences = spec_on_gpus(spec, capacity)
    capacity.refuse_infeasible(spec.resources)
    check_gpus([spec.resources])
    return spec, sentences


def check_connected(session: Session, spec: RunSpec, console: Console) -> None:
    """Raise UserError if the cluster lacks resources or files that a run needs."""
    session.capacity.refuse_infeasible(spec.resources)
    named, asking = GPUS in spec.model_fields_set, f"--set {GPUS}=1"
    check_cluster(session, console, spec, are_gpus_named=named, asking=asking)


def names_target(options: SpecOptions) -> bool:
    """Return whether the user has set the target, by an option or in the run spec."""
    if options.settings.keys() & {"objective", "objective.target", "objective.kind"}:
        return True
    return options.spec is not None and "objective" in content_of(options.spec, "")[0]


def _run(options: TrainOptions, spec: RunSpec, opened: OpenStudy) -> RunRecord:
    console, interrupt, store = opened.frame.console, opened.frame.interrupt, opened.store
    with live_session(options.address, interrupt, console) as session:
        check_connected(session, spec, console)
        opened.start_over()
        content = {"objective": spec.objective.model_dump(mode="json"), TRAINING: True}
        store.write_yaml(STUDY_FILE, {"study": content} | with_session({}))
        console.print(f"{describe(spec)}, seed {spec.seed}", highlight=False)
        deadline, screen = Deadline(None, interrupt=interrupt), _Screen(options, console, spec)
        screen.curve.begin()
        with single_runs(session, store, deadline, screen, wait_s=options.wait) as single_run:
            record = single_run.train(
                spec,
                TRIAL,
                Role.TRIAL,
                test=True,
                save=lambda file: _save_model(store, spec, file.read_bytes()),
            )
        deadline.raise_fault()
    return record


class _Screen(RunLines):
    """Display of the evaluations of the run; `--progress jsonl` also writes its events as JSON."""

    def __init__(self, options: TrainOptions, console: Console, spec: RunSpec) -> None:
        super().__init__(console)
        self.curve = CurveLines(console, spec)
        self._events: ProgressDisplay | None = None
        if (stream := lines_for(options.progress)) is not None:
            self._events = ProgressDisplay(console, num_trials=1, lines=stream)
            self._events.begin("train", 1)

    def started(self, name: str, spec: RunSpec) -> None:
        super().started(name, spec)
        if self._events is not None:
            self._events.started(name, spec)

    def evaluated(self, name: str, evaluation: Evaluation) -> None:
        super().evaluated(name, evaluation)
        self.curve.evaluated(evaluation)
        if self._events is not None:
            self._events.evaluated(name, evaluation)

    def finished(self, record: RunRecord) -> None:
        super().finished(record)
        if self._events is not None:
            self._events.finished(record)


def _save_model(store: Store, spec: RunSpec, weights: bytes) -> None:
    """Write the trained model; for a training loop of the user, write the state that it saved."""
    if is_own_loop(spec.workload):
        if weights:
            kind, state = state_of(weights)
            store.write_bytes(STATE_FILES[kind], state)
        return
    # Already loaded by `check_run`, and cached.
    _, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    store.write_text(DATA_FILE, ModelData.of(dataset, spec.dataset).model_dump_json())
    store.write_bytes(MODEL_FILES[spec.framework], weights)


def _print_outcome(
    opened: OpenStudy, record: RunRecord, curves: Mapping[str, Sequence[Evaluation]]
) -> None:
    phases = "  ".join(f"{phase} {record.ledger[phase]:.2f}" for phase in (*PHASES, OTHER))
    lines = [f"ledger, s: {phases}  | wall {record.wall_s:.2f}"]
    if rates := run_rates(record, curves.get(TRIAL, [])):
        lines.append(_speed_line(rates))
    target, metric = record.spec.objective.target, record.spec.objective.judged_by
    if record.failure:
        lines.append(f"failed: {record.failure} ({record.message})")
    elif target is not None:
        outcome = f"not reached (ended by {record.stop})"
        if record.time_to_target_s is not None:
            outcome = f"after {seconds_text(record.time_to_target_s)} s of training"
        lines.append(f"target {target_words(metric, target)} {outcome}")
    if record.test_value is not None:
        lines.append(f"test {metric.words} {metric.shown(record.test_value, digits=2)}")
    if is_own_loop(record.spec.workload):
        paths = (opened.folder / name for name in STATE_FILES.values())
        lines += [f"state: {path}, as run.save was given it" for path in paths if path.is_file()]
    elif record.test_value is not None:
        name = MODEL_FILES[record.spec.framework]
        hint = f"load it with raybench.load_model('{opened.place}')"
        lines.append(f"model: {opened.folder / name}, {hint}")
    lines.append(f"results: {opened.where}")
    opened.frame.say(*lines)


def _speed_line(rates: dict[str, float]) -> str:
    """Return a line of text with those rates of a run (`run_rates`) that are known."""
    parts = [f"{digits(rates['samples_per_s'])} samples/s"]
    if rates["tokens_per_s"] > 0:
        parts.append(f"{digits(rates['tokens_per_s'])} tokens/s")
    if rates["flops_per_s"] > 0:
        parts.append(f"{rates['flops_per_s'] / 1e12:.3g} TFLOP/s")
    if rates["mfu"] > 0:
        parts.append(f"MFU {rates['mfu']:.0%}")
    return f"speed at the median step: {', '.join(parts)}"


def finished_run(folder: Path, name: str, spec: RunSpec) -> RunRecord | None:
    """Return the record of a complete run; None if the folder has no such run.

    The run must have the given run spec and, unless it is a training loop of the user, a saved
    model.
    """
    if not (folder / RECORDS_FILE).is_file():
        return None
    if not (is_own_loop(spec.workload) or (folder / MODEL_FILES[spec.framework]).is_file()):
        return None
    record = read_records(folder).runs.get(name)
    if record is None or record.state != State.COMPLETE or record.stop == StopReason.INTERRUPTED:
        return None
    return record if spec_digest(record.spec) == spec_digest(spec) else None
