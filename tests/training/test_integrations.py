"""Callbacks for trainers of libraries, with a fake of each library and with the library itself."""

import importlib
import io
import math
import sys
import tarfile
import tempfile
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from local_runs import Clock
from user_loops import Loop, Worker

from raybench import integrations
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.clock import Ledger
from raybench.training.own import OwnTrainer, PlainWorld, Run, state_of
from tests.refusals import refused

STEPS = 4


class Fit:
    """Fake trainer that calls a callback as the real ones do: two epochs of four steps.

    The first step takes `more_s` seconds longer than the others.
    """

    def __init__(self, clock: Clock, metric: str, more_s: float = 100.0) -> None:
        self.clock, self.metric, self.more_s = clock, metric, more_s
        self.control = types.SimpleNamespace(
            should_evaluate=False, should_save=False, should_training_stop=False
        )
        self.should_stop = self.stop_training = False
        self.world_size = 1
        self.callback_metrics = {metric: 0.5}

    def __call__(self, callback: Any) -> None:
        callback.params, callback.model = {"steps": STEPS}, self
        if hasattr(callback, "on_fit_start"):
            callback.on_fit_start(self)
        else:
            callback.on_train_begin(*([self] if self.metric.startswith("eval") else []))
        self.clock.now += 20.0  # set-up
        for epoch in range(2):
            self.call(callback, "epoch_begin", epoch, names=("train_epoch_start",))
            for step in range(STEPS):
                self.call(callback, "step_begin", step, names=BEGIN)
                self.clock.now += 1.0 + self.more_s * (epoch == step == 0)
                self.call(callback, "step_end", step, names=END)
            is_hugging_face = hasattr(callback, "on_evaluate")
            self.call(callback, "epoch_end" if is_hugging_face else "", epoch, names=VALIDATION)
            self.clock.now += 50.0  # validation
            self.report(callback, epoch)

    def call(self, callback: Any, name: str, number: int, names: tuple[str, ...]) -> None:
        for event in (name, *names):
            if function := getattr(callback, f"on_{event}", None):
                logs = {"logs": None} if event == "train_batch_begin" else {}
                function(*self.arguments(event, number), **logs)

    def arguments(self, name: str, number: int) -> tuple[Any, ...]:
        if name.startswith(("step", "epoch_begin")) and self.metric.startswith("eval"):
            return None, None, self.control
        return () if name == "test_begin" else (number,)

    def save_checkpoint(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text("saved")

    def report(self, callback: Any, epoch: int) -> None:
        if hasattr(callback, "on_evaluate"):
            callback.on_evaluate(None, None, self.control, metrics=self.callback_metrics)
            if self.control.should_save:
                state = types.SimpleNamespace(global_step=(epoch + 1) * STEPS)
                arguments = types.SimpleNamespace(output_dir=tempfile.mkdtemp())
                folder = Path(arguments.output_dir) / f"checkpoint-{state.global_step}"
                self.save_checkpoint(folder / "model")
                callback.on_save(arguments, state, self.control)
        elif hasattr(callback, "on_validation_end"):
            callback.on_validation_end(self, None)
        else:
            callback.on_epoch_end(epoch, self.callback_metrics)


BEGIN = ("train_batch_begin", "train_batch_start")
END = ("train_batch_end",)
VALIDATION = ("validation_start", "test_begin", "train_epoch_end")


class Backup:
    """Fake of `keras.callbacks.BackupAndRestore`."""

    def __init__(self, backup_dir: str) -> None:
        self.backup_dir = backup_dir

    def set_model(self, model: Any) -> None:
        self.model = model

    def on_epoch_end(self, epoch: int) -> None:
        Path(self.backup_dir).mkdir(exist_ok=True)
        Path(self.backup_dir, "epoch").write_text(str(epoch))


ALL = [
    ("transformers", "TrainerCallback", integrations.HuggingFace, "eval_accuracy"),
    ("lightning.pytorch.callbacks", "Callback", integrations.Lightning, "val_accuracy"),
    ("keras.callbacks", "Callback", integrations.Keras, "val_accuracy"),
]


@pytest.fixture(params=ALL, ids=["transformers", "lightning", "keras"])
def integration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    """Function that makes a callback, over a fake library, and the name of the metric."""
    library, name, make, metric = request.param
    module = types.ModuleType(library)
    setattr(module, name, type(name, (), {}))
    module.BackupAndRestore = Backup
    for part in (library, library.partition(".")[0], library.rpartition(".")[0] or library):
        monkeypatch.setitem(sys.modules, part, module)
    return make, metric


@pytest.mark.parametrize(("more_s", "first_s"), [(100.0, 4.0), (-0.5, 3.5)])
def test_clock_has_steps_only_and_a_slow_first_step_counts_like_others(
    integration: Any, more_s: float, first_s: float
) -> None:
    make, metric = integration
    clock = Clock()
    curve = Worker(lambda run: Fit(clock, metric, more_s)(make(run)), clock=clock).run_to_end()
    assert [point.train_s for point in curve] == pytest.approx([first_s, first_s + 4, first_s + 4])
    assert [point.samples for point in curve] == [4 * 64, 8 * 64, 8 * 64]
    assert [point.value for point in curve] == [0.5, 0.5, 0.5]


def test_trainer_with_another_number_of_processes_is_refused(integration: Any) -> None:
    make, metric = integration
    if metric == "val_accuracy" and make is integrations.Keras:
        pytest.skip("Keras trains in one process, and its runs have one worker")

    def loop(run: Run) -> None:
        fit = Fit(Clock(), metric)
        fit.world_size = 2
        fit(make(run))

    with refused(ErrorCode.USER_CODE, "2 process", "1 worker"):
        Worker(loop).run_to_end()


def test_run_resumes_from_the_checkpoint_of_the_trainer(
    integration: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, metric = integration
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    clock, checkpoints = Clock(), list[Any]()

    def loop(run: Run) -> None:
        callback = make(run)
        fit = Fit(clock, metric)
        checkpoints.append(getattr(callback, "checkpoint", None))
        fit.control.should_save = True
        fit(callback)

    first = Worker(loop, clock=clock)
    point = next(first.trainer.evaluations())
    state = first.trainer.state()
    first.trainer.finish()
    assert state is not None
    resumed = OwnTrainer(first.spec, loop, PlainWorld("cpu"), Ledger("setup"))
    resumed.restore(state)
    with tarfile.open(fileobj=io.BytesIO(state_of(resumed.save())[1])) as archive:
        (saved,) = [member.name for member in archive.getmembers() if member.isfile()]
    if make is integrations.Keras:
        assert saved == "./epoch"
        return
    next(resumed.evaluations())
    resumed.finish()
    assert checkpoints[0] is None
    folder = (
        Path(checkpoints[1]) if make is integrations.HuggingFace else Path(checkpoints[1]).parent
    )
    assert (folder / saved).read_text() == "saved"
    assert point.samples == STEPS * 64


@pytest.mark.parametrize("has_filters", [True, False], ids=["3.11.4", "3.11.0"])
@pytest.mark.parametrize("name", ["../outside", "link", "inside/file"])
def test_files_outside_the_folder_of_a_checkpoint_are_refused(
    name: str, has_filters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python before 3.11.4 extracts any member of an archive."""
    if not has_filters:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        whole = tarfile.TarFile.extractall
        monkeypatch.setattr(tarfile.TarFile, "extractall", lambda self, path: whole(self, path))
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no extraction filters")
    member = tarfile.TarInfo(name)
    if name == "link":
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(member)
    buffer.seek(0)
    folder = tmp_path / "folder"
    is_refused = pytest.raises(tarfile.TarError) if "inside" not in name else nullcontext()
    with tarfile.open(fileobj=buffer) as archive, is_refused:
        integrations._extract(archive, folder)
    assert not (tmp_path / "outside").exists()
    assert (folder / name).is_file() == ("inside" in name)


def test_stop_of_the_run_stops_the_trainer(integration: Any) -> None:
    make, metric = integration
    clock, fits = Clock(), []

    def loop(run: Run) -> None:
        fits.append(Fit(clock, metric))
        fits[0](make(run))

    curve = Worker(loop, clock=clock, objective=Objective(target=0.4)).run_to_end()
    assert [point.stop for point in curve] == ["target"]
    (fit,) = fits
    assert fit.should_stop + fit.stop_training + fit.control.should_training_stop == 1


def test_missing_metric_is_refused(integration: Any) -> None:
    make, metric = integration
    clock = Clock()
    loop: Loop = lambda run: Fit(clock, metric)(make(run, metric="f1"))  # noqa: E731
    with refused(ErrorCode.UNKNOWN_NAME, "f1", metric):
        Worker(loop, clock=clock).run_to_end()


@pytest.mark.parametrize(("library", "_", "make", "metric"), ALL)
def test_missing_library_is_refused(
    library: str, _: str, make: Any, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = library.partition(".")[0]
    modules = list(sys.modules)
    for module in [key for key in modules if key == name or key.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(
        sys, "meta_path", [types.SimpleNamespace(find_spec=missing(name)), *sys.meta_path]
    )
    with refused(ErrorCode.NOT_INSTALLED, name):
        Worker(lambda run: make(run)).run_to_end()


def test_keras_fit_with_several_workers_is_refused() -> None:
    run = types.SimpleNamespace(num_workers=2, spec=RunSpec())
    with refused(ErrorCode.UNSUPPORTED, "num_workers: 1", "run.strategy"):
        integrations.Keras(run)


def missing(name: str) -> Any:
    def find_spec(module: str, *_: Any) -> None:
        if module == name:
            raise ModuleNotFoundError(name=name)

    return find_spec


@pytest.mark.parametrize(
    ("library", "example", "samples"),
    [
        ("keras", "keras_fit", 1408),
        ("lightning", "lightning_fit", 1408),
        ("transformers", "hugging_face", 1024),
    ],
)
def test_example_trains_with_the_library(
    library: str, example: str, samples: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed")
    if library == "transformers":
        pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    monkeypatch.chdir(tmp_path)
    train = importlib.import_module(example).train
    objective = Objective(target=0.01, hold=2, max_train_seconds=1000.0)
    changes: dict[str, Any] = {"model": {"hidden_units": 32}, "learning_rate": 1e-5}
    curve = Worker(train, objective=objective, epochs=50.0, **changes).run_to_end()
    assert [point.samples for point in curve] == [samples, 2 * samples]
    assert all(point.train_s > 0 and math.isfinite(point.value) for point in curve)
    assert curve[-1].stop == "target", "the run stopped the trainer before its 50 epochs"
