"""Callbacks for trainers of libraries, with a fake of each library and with the library itself."""

import importlib
import io
import math
import sys
import tarfile
import types
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from local_runs import Clock
from user_loops import Worker

from raybench import integrations
from raybench.spec.errors import ErrorCode
from raybench.spec.objective import Objective
from raybench.spec.run import RunSpec
from raybench.stats.record import Evaluation
from tests.refusals import refused

STEPS = 4
EVENTS = {
    "transformers": "train_begin epoch_begin step_begin step_end epoch_end evaluate",
    "lightning": "fit_start train_epoch_start train_batch_start train_batch_end validation_start "
    "validation_end",
    "keras": "train_begin epoch_begin train_batch_begin train_batch_end test_begin epoch_end",
}
"""Events of each library's callbacks: start of training, of an epoch and of a step, end of a step,
start of the validation, and its result."""


class Fit:
    """Fake trainer that calls a callback as the real ones do: two epochs of four steps.

    The first step takes `more_s` seconds longer than the others.
    """

    should_stop = stop_training = False

    def __init__(
        self, library: str, clock: Clock, more_s: float = 100.0, world_size: int = 1
    ) -> None:
        self.library, self.clock, self.more_s, self.world_size = library, clock, more_s, world_size
        self.control = types.SimpleNamespace(
            should_evaluate=False, should_save=False, should_training_stop=False
        )
        self.callback_metrics = {METRICS[library]: 0.5}

    def __call__(self, callback: Any) -> None:
        callback.params, callback.model = {"steps": STEPS}, self
        metrics = {
            "transformers": {"metrics": self.callback_metrics},
            "lightning": {},
            "keras": {"logs": self.callback_metrics},
        }

        def call(event: str, number: int, **keywords: Any) -> None:
            arguments = {"transformers": (self, None, self.control), "lightning": (self,)}
            getattr(callback, f"on_{event}")(*arguments.get(self.library, (number,)), **keywords)

        train, epoch_begin, step_begin, step_end, validation, result = EVENTS[self.library].split()
        call(train, 0)
        self.clock.now += 20.0  # set-up
        for epoch in range(2):
            call(epoch_begin, epoch)
            for step in range(STEPS):
                call(step_begin, step)
                self.clock.now += 1.0 + self.more_s * (epoch == step == 0)
                call(step_end, step)
            call(validation, epoch)
            self.clock.now += 50.0  # validation
            call(result, epoch, **metrics[self.library])


METRICS = {"transformers": "eval_accuracy", "lightning": "val_accuracy", "keras": "val_accuracy"}
CALLBACKS: dict[str, tuple[str, str, Any]] = {
    "transformers": ("transformers", "TrainerCallback", integrations.HuggingFace),
    "lightning": (
        *("lightning.pytorch.callbacks", "Callback"),
        partial(integrations.Lightning, save=False),
    ),
    "keras": ("keras.callbacks", "Callback", partial(integrations.Keras, save=False)),
}
"""Module and name of each library's base class, and the function that makes a callback."""


@pytest.fixture(params=CALLBACKS)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of each library in turn, which is replaced by a fake."""
    path, base, _ = CALLBACKS[request.param]
    module = types.ModuleType(path)
    setattr(module, base, type(base, (), {}))
    module.BackupAndRestore = lambda folder: types.SimpleNamespace(set_model=lambda model: None)
    for name in (path, path.partition(".")[0], path.rpartition(".")[0] or path):
        monkeypatch.setitem(sys.modules, name, module)
    return str(request.param)


def run_to_end(fit: Fit, **options: Any) -> list[Evaluation]:
    """Run a loop that trains with a fake library; `options` are those of the callback."""
    make = CALLBACKS[fit.library][2]
    return Worker(lambda run: fit(make(run, **options)), clock=fit.clock).run_to_end()


@pytest.mark.parametrize(("more_s", "first_s"), [(100.0, 4.0), (-0.5, 3.5)])
def test_clock_has_steps_only_and_a_slow_first_step_counts_like_others(library, more_s, first_s):
    curve = run_to_end(Fit(library, Clock(), more_s))
    assert [point.train_s for point in curve] == pytest.approx([first_s, first_s + 4, first_s + 4])
    assert [point.samples for point in curve] == [4 * 64, 8 * 64, 8 * 64]
    assert [point.value for point in curve] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("library", ["transformers", "lightning"], indirect=True)
def test_trainer_with_another_number_of_processes_is_refused(library):
    with refused(ErrorCode.USER_CODE, "2 process", "1 worker"):
        run_to_end(Fit(library, Clock(), world_size=2))


@pytest.mark.parametrize("has_filters", [True, False], ids=["3.11.4", "3.11.0"])
@pytest.mark.parametrize("name", ["../outside", "link", "inside/file"])
def test_files_outside_the_folder_of_a_checkpoint_are_refused(
    name, has_filters, tmp_path, monkeypatch
):
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


def test_missing_metric_is_refused(library):
    with refused(ErrorCode.UNKNOWN_NAME, "f1", METRICS[library]):
        run_to_end(Fit(library, Clock()), metric="f1")


@pytest.mark.parametrize(("name", "callback"), CALLBACKS.items())
def test_missing_library_is_refused(name, callback, monkeypatch):

    def import_module(path: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(integrations.importlib, "import_module", import_module)
    with refused(ErrorCode.NOT_INSTALLED, name):
        Worker(callback[2]).run_to_end()


def test_keras_fit_with_several_workers_is_refused():
    run = types.SimpleNamespace(num_workers=2, spec=RunSpec())
    with refused(ErrorCode.UNSUPPORTED, "num_workers: 1", "run.strategy"):
        integrations.Keras(run)


@pytest.mark.parametrize(
    ("library_name", "example", "samples"),
    [
        ("keras", "keras_fit", 1408),
        ("lightning", "lightning_fit", 1408),
        ("transformers", "hugging_face", 1024),
    ],
)
def test_example_trains_and_resumes_with_the_library(
    library_name, example, samples, monkeypatch, tmp_path
):
    pytest.importorskip(library_name, reason=f"{library_name} is not installed")
    if library_name == "transformers":
        pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    monkeypatch.chdir(tmp_path)
    train = importlib.import_module(example).train
    objective = Objective(target=0.01, hold=2, max_train_seconds=1000.0)
    changes: dict[str, Any] = {"model": {"hidden_units": 32}, "learning_rate": 1e-5}
    worker = Worker(train, objective=objective, epochs=50.0, **changes)
    points = worker.trainer.evaluations()
    curve = [next(points)]
    state = worker.trainer.state()
    curve += points
    worker.trainer.finish()
    assert [point.samples for point in curve] == [samples, 2 * samples]
    assert all(point.train_s > 0 and math.isfinite(point.value) for point in curve)
    assert curve[-1].stop == "target", "the run stopped the trainer before its 50 epochs"
    resumed = Worker(train, objective=objective, epochs=2.0, **changes)
    resumed.trainer.restore(state)
    assert [point.stop for point in resumed.run_to_end()] == [None, "epochs"], "one more epoch"
