"""The one class a user writes to train something of their own, what it must know of the data, what
the user's code raises as one sentence, and a model's own settings.

Those are what the constructor of a workload takes, by name and default. A run spec has them under
`model`, a space searches them there: `space: {model: {hidden_units: [64, 128]}}`.
"""

import contextlib
import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from raybench.data.dataset import Dataset
from raybench.data.inputs import InputShape
from raybench.models.layers import Layer
from raybench.spec.errors import UserError, did_you_mean
from raybench.spec.metric import Metric
from raybench.spec.run import DatasetSpec, RunSpec, Task
from raybench.spec.text import shorten

if TYPE_CHECKING:
    import keras
    import torch

Hook = Callable[[Any, Any], Any]
"""(outputs, labels) -> one number per sample, as a tensor of the framework."""


class Workload:
    """A model and its data. Subclass it, set the three attributes, write one build method or both.

    `--workload my_module:MyWorkload` then trains it; nothing else is needed from raybench.

    | | torch | Keras |
    |---|---|---|
    | images arrive as | (N, C, H, W) float32 | (N, H, W, C) float32 |
    | pixels | uint8 data is scaled to 0..1 | the same |
    | tokens, codes, masks | int64 as they are | the same |
    | inputs by name | one dict of tensors | the same |
    | the model returns | logits (N, num_classes) | the same |
    | of a regression | (N,) or (N, outputs), in the labels' scale | the same |
    | of a language model | logits (N, tokens, num_classes) | the same |

    The model is built anew for every run, after the framework was seeded; it returns logits,
    not probabilities. Leave devices, parallelism and precision to raybench. Batch
    normalisation works on each worker's own samples.
    """

    name: str
    """Short, for tables."""
    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """Shape of one sample: (H, W, C) of an image, in both frameworks; (features,) of a vector,
    (tokens,) of a text; a dict where inputs have names."""
    num_classes: int
    """Classes, or tokens of a vocabulary; not needed for a regression."""
    task: Task = "classification"
    """Task: `classification`, `regression` or `language_modelling`; that of the data,
    unless the loss is the workload's own."""
    metric: Metric | None = None
    """A metric of its own, which `torch_metric` and `keras_metric` measure:
    `Metric(name="dice", direction="max")`. None leaves the choice to `objective.metric`."""

    head: str | None = None
    """Prefix of the names of the head's parameters (torch) or layers (Keras) begin with;
    `frozen_epochs` needs it, models by name know theirs."""

    torch_loss: Hook | None = None
    """Method (outputs, labels) -> loss of each sample (N,); by default cross entropy, of a
    regression the squared error (mean over outputs), of a language model the mean over tokens."""
    torch_metric: Hook | None = None
    """Method (outputs, labels) -> value of `metric` for each sample (N,)."""
    torch_correct: Hook | None = None
    """Method (outputs, labels) -> 1 or 0 for each sample (N,), whose mean is the accuracy; none
    compares the largest logit."""
    keras_loss: Hook | None = None
    """Keras's counterpart of `torch_loss`; by default the loss that the model is compiled with, if
    it is. What a model adds by penalties and `add_loss` is trained in any case."""
    keras_metric: Hook | None = None
    """Keras's counterpart of `torch_metric`."""
    keras_correct: Hook | None = None
    """Keras's counterpart of `torch_correct`."""

    def build_torch(self) -> "torch.nn.Module":
        """Return a new model; needed to run with framework torch."""
        raise missing_method(self, "build_torch", "framework torch")

    def build_keras(self) -> "keras.Model":
        """Return a new model; needed to run with framework tensorflow."""
        raise missing_method(self, "build_keras", "framework tensorflow")

    def load_dataset(self, spec: DatasetSpec) -> Dataset:
        """Return the data; needed for dataset name `workload`.

        Split it by `spec.split_seed` alone, so that all runs of a study and all their workers
        have the same splits. `spec.limit` and `spec.repeat` are applied to what is returned.
        What does not fit memory is given on demand: in place of an array, an object with
        `shape`, `dtype` and `[rows]` that reads samples (`raybench.data.inputs`).
        """
        del spec
        raise missing_method(self, "load_dataset", "dataset 'workload'")


class LayerWorkload(Workload):
    """A workload given by its layers: both frameworks build it, with equal initial weights.

    Its build methods are not asked.
    """

    input_shape: tuple[int, ...]
    """Shape of one sample of the one input."""
    layers: tuple[Layer, ...]
    """Layers in order; the last is `Dense(num_classes)`."""


class OwnLoop(Workload):
    """A training loop of the user's own (`spec.own_loop`), which builds its model and loads its
    data itself; see `training.own`."""

    def __init__(self, name: str, function: Callable[[Any], object] | None) -> None:
        """`function` takes a `raybench.Run`; None of a command."""
        self.name, self.function = name, function


Kind = Literal["pixels", "numbers", "tokens"]
"""Kind of one array of inputs, by its type: uint8, float32, whole numbers."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """The shape of one sample, and what is to be learnt of it."""

    input_shape: tuple[int, ...] | dict[str, tuple[int, ...]]
    """(H, W, C) of an image, (features,), (tokens,); of inputs by name each by its own."""
    num_outputs: int
    """Numbers that a model returns for a sample, of a language model for a token of it."""
    task: Task = "classification"
    """Task that is to be learnt."""
    vocabulary_size: int | None = None
    """Token ids are below it; None where the inputs are no tokens, or it is unknown."""
    kind: Kind | None = None
    """Kind of the inputs; None for inputs by name, or where it is unknown."""

    @classmethod
    def of(cls, dataset: Dataset) -> "DataShape":
        """Return that of a dataset."""
        kind: Kind | None = None
        if not isinstance(dataset.train.inputs, dict):
            by_type: dict[str, Kind] = {"u": "pixels", "f": "numbers", "i": "tokens"}
            kind = by_type[dataset.train.dtype.kind]
        return cls(
            input_shape=as_tuples(dataset.input_shape),
            num_outputs=dataset.num_outputs,
            task=dataset.task,
            vocabulary_size=_vocabulary_size(dataset, kind),
            kind=kind,
        )


def _vocabulary_size(dataset: Dataset, kind: Kind | None) -> int | None:
    """Return the size that the dataset has, or what its token ids need."""
    if dataset.vocabulary:
        return len(dataset.vocabulary)
    if dataset.task == "language_modelling":
        return dataset.num_classes
    splits = dataset.splits.values()
    if kind != "tokens" or any(split.is_on_demand for split in splits):
        return None
    return 1 + max(int(split.array.max(initial=0)) for split in splits)  # one input: it has a kind


def as_tuples(shape: Any) -> InputShape:
    """Return a shape with tuples where the user or a file has lists."""
    if isinstance(shape, dict):
        return {name: tuple(one) for name, one in shape.items()}
    return tuple(shape)


def missing_method(workload: Workload, method: str, use: str) -> UserError:
    """Return the error that says which method `use` needs."""
    return UserError(f"Workload {workload.name} has no {method}, so it cannot run with {use}.")


def missing_hook(workload: Workload, metric: Metric, hook: str) -> UserError:
    """Return the error that says which hook a workload's own metric needs."""
    return UserError(
        f"Workload {workload.name} has the metric {metric.name} and no {hook} to measure it; "
        f"write {hook}(self, outputs, labels), which returns one value for each sample."
    )


def refuse_label_smoothing(spec: RunSpec, workload: Workload) -> None:
    """Raise UserError where `label_smoothing` is set and the loss does not use it."""
    own = workload.torch_loss if spec.framework == "torch" else workload.keras_loss
    if spec.label_smoothing and (own or workload.task == "regression"):
        raise no_label_smoothing(spec.label_smoothing, workload, has_loss=own is not None)


def no_label_smoothing(smoothing: float, workload: Workload, *, has_loss: bool = True) -> UserError:
    """Return the error of `label_smoothing` for a loss that does not use it."""
    why = "has a loss of its own" if has_loss else "learns numbers, which are no classes"
    return UserError(
        f"label_smoothing: {smoothing:g}: workload {workload.name} {why}; leave it "
        f"out{', or smooth the labels there' if has_loss else ''}."
    )


_LIBRARIES = tuple(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib"))
_OURS = str(Path(__file__).parents[1])
MAX_ERROR = 300
"""Characters of an error's own text that go into the sentence; all of it is in the details."""


@contextlib.contextmanager
def users_code(what: str, advice: str = "") -> Iterator[None]:
    """Turn what is raised inside into a UserError: `what`, file, line and error, `advice`.

    `details` of it holds the whole traceback. A UserError passes as it is; a `sys.exit` is an
    error too, Ctrl-C is not.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        text = shorten(" ".join(str(error).split()), MAX_ERROR)
        kind = f"{type(error).__name__}: {text}" if text else type(error).__name__
        if isinstance(error, SystemExit):
            kind = f"sys.exit({error.code!r})"
        place = place_of(traceback.extract_tb(error.__traceback__))
        where = f"{place}: " if place else ""
        raise UserError(
            f"{what} ({where}{kind}){advice}.", details=traceback.format_exc()
        ) from error


def place_of(steps: traceback.StackSummary) -> str:
    """Return "file, line n" of the last step in a file that is neither a library's nor ours; ""
    without such a step."""
    users = [
        step
        for step in steps
        if Path(step.filename).is_file()
        and not step.filename.startswith((*_LIBRARIES, _OURS))
        and "-packages" not in step.filename
    ]
    return f"{users[-1].filename}, line {users[-1].lineno}" if users else ""


def known_settings(
    build: Callable[..., Any], taken: int = 0, *, takes_any: bool = True
) -> dict[str, Any] | None:
    """Return the settings that a constructor takes, with their defaults; None where any name goes.

    `taken`: how many of its first parameters are not the user's. Not `takes_any`: those that it
    names, whatever it takes beside. What has no default is `inspect.Parameter.empty`.
    """
    found = list(inspect.signature(build).parameters.values())[taken:]
    if takes_any and any(one.kind is one.VAR_KEYWORD for one in found):
        return None
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = {one.name: one.default for one in found if one.kind not in many}
    for one in found:  # a number with a fraction may begin at 0: `momentum: float = 0`
        if "float" in str(one.annotation) and type(one.default) is int:
            known[one.name] = float(one.default)
    return known


def import_users(module_name: str, what: str) -> ModuleType:
    """Import a module of the user's, also beside them; UserError that begins with `what`."""
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    advice = "; run from the folder that holds it, or mend it"
    with users_code(f"{what}: module '{module_name}' cannot be imported", advice=advice):
        return importlib.import_module(module_name)


def check_settings(
    known: Mapping[str, Any] | None, given: Mapping[str, Any], what: str, *, key: str = "model"
) -> None:
    """Raise UserError for a setting that there is not, or one that is missing or of another kind.

    A default says the kind: a number is no text, a switch is `true` or `false`. `key` holds them.
    """
    if known is None:
        return
    for name, value in given.items():
        if name not in known:
            nothing = "" if known else "there are none: its constructor takes nothing."
            hint = did_you_mean(name, known, nothing)
            raise UserError(f"{key}.{name}: {what} has no such setting; {hint}")
        if not _is_alike(known[name], value):
            raise UserError(
                f"{key}.{name}: {value!r} is not of the kind of {what}'s default, {known[name]!r}."
            )
    for name, default in known.items():
        if default is inspect.Parameter.empty and name not in given:
            raise UserError(f"{what} needs {key}.{name}: set it under fixed.{key} or space.{key}.")


def _is_alike(default: Any, value: Any) -> bool:
    if default is None or value is None or default is inspect.Parameter.empty:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, int | float):
        is_number = isinstance(value, int | float)
        return is_number and (isinstance(default, float) or float(value).is_integer())
    return not isinstance(default, str) or isinstance(value, str)
