"""Check of a user's model on a few samples, before its first run in a worker process."""

from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.data.dataset import Batch, Dataset, each, shown
from raybench.models.base import BUILD_METHODS, LayerWorkload, OwnLoop, Workload
from raybench.models.named import NamedWorkload
from raybench.models.user_code import user_code_errors
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import Metric, find_metric
from raybench.spec.run import RunSpec
from raybench.spec.text import identity
from raybench.training.base import DistributedContext, find_part

Array = npt.NDArray[Any]
NUM_SAMPLES = 8
"""Maximum number of training samples in a check. If the batch size per worker is smaller, so is the
number of samples, so that the check takes no more memory than training; but there are at least 2,
which batch normalization needs."""
_checked: set[str] = set()
"""Models that this process has checked, each identified by workload, settings and framework."""


def check_start(
    spec: RunSpec, workload: Workload, dataset: Dataset, world: DistributedContext
) -> list[str]:
    """Check on a worker that the model of a run can be trained.

    Builds a second model, and passes a few samples of the real data through the model, its loss and
    its metric. Only rank 0 does so, once per process and model. Two kinds of workloads are not
    checked: models that are defined by a list of layers, such as the shipped ones, which are known
    to work, and user training loops, which build their models themselves.

    Returns:
        Warnings, one sentence each.

    Raises:
        UserError: The model cannot be trained; the error's `details` contain the traceback.
    """
    key = identity([spec.workload, spec.model, spec.framework])
    is_known = isinstance(workload, LayerWorkload | OwnLoop)
    if is_known or world.rank or key in _checked:
        return []
    metric = find_metric(spec.objective.metric, task=workload.task, custom=workload.metric)
    rows = np.arange(min(NUM_SAMPLES, max(2, spec.batch_size_per_worker), len(dataset.train)))
    samples = dataset.train.read(rows), dataset.train.labels[rows]
    gpu = world.gpus[0] if world.gpus else None
    warnings = check_model(spec.framework, workload, metric, *samples, gpu=gpu)
    _checked.add(key)
    return warnings


def check_model(
    framework: str,
    workload: Workload,
    metric: Metric,
    inputs: Batch,
    labels: Array,
    *,
    gpu: int | None = None,
) -> list[str]:
    """Build a workload's model and pass a batch through model, loss and metric.

    Args:
        framework: `torch` or `tensorflow`.
        workload: Workload that builds the model.
        metric: Metric of the run.
        inputs: Inputs of a few samples.
        labels: Labels of these samples.
        gpu: GPU to use, as an index among the GPUs visible to the process; None for the CPU.

    Returns:
        Warnings, one sentence each.

    Raises:
        UserError: The model cannot be trained.
    """
    module, builder, of = find_part(framework, "model"), BUILD_METHODS[framework], workload.name
    judge, code = module.Losses(workload, metric), ErrorCode.INVALID_MODEL

    def error(what: str) -> UserError:
        return UserError(f"Workload {of}: {what}", code)

    with user_code_errors(f"Workload {of}: {builder} failed", code=code):
        model = module.build_model(workload, seed=0)
    if not isinstance(model, module.MODEL_TYPE):
        type_name = module.MODEL_TYPE.__name__
        raise error(
            f"{builder} must return a {type_name} of {framework}, not {type(model).__name__}."
        )
    with user_code_errors(f"Workload {of}: its parameters are not built", code=code):
        has_parameters = module.num_parameters(model) > 0
    if not has_parameters:
        raise error(
            "its model has no trainable parameters; give it layers, or unfreeze some (begin a "
            "Keras model with keras.Input, which gives its layers their shapes)."
        )
    what, advice = f"its model failed on inputs {shown(each(inputs, np.shape))}", ""
    if isinstance(workload, NamedWorkload) and len(workload.input_shape) == 3:
        advice = "; set a larger dataset.image_size if its images are too small for it"
    with user_code_errors(f"Workload {of}: {what}", advice, code):
        outputs, answers = module.training_outputs(model, inputs, labels, gpu)
    dtype = str(getattr(outputs, "dtype", type(outputs).__name__))
    if "float" not in dtype:
        raise error(f"its model must return a tensor of floating point numbers, not {dtype}.")
    wanted_shapes = _wanted_shapes(workload, labels)
    if _is_default(judge) and tuple(outputs.shape) not in wanted_shapes:
        raise error(
            f"its model returns outputs of shape {tuple(outputs.shape)} for {len(labels)} samples; "
            f"change its last layer so that the shape is {wanted_shapes[0]}."
        )
    with user_code_errors(f"Workload {of}: its loss failed", code=code):
        losses = judge.losses(outputs, answers)
    with user_code_errors(f"Workload {of}: its {metric.words} failed", code=code):
        values = judge.values(outputs, answers, losses)
    measured = {"loss": losses} | ({metric.words: values} if metric.is_mean else {})
    for name, values in measured.items():
        if tuple(values.shape) != (len(labels),):
            raise error(
                f"its {name} has shape {tuple(values.shape)} for {len(labels)} samples; return one "
                f"number for each, ({len(labels)},), without averaging."
            )
    return _softmax_warning(judge, module.to_array(outputs))


def _is_default(judge: Any) -> bool:
    """Return whether raybench's own loss or metric is applied to the outputs, so that they must
    have a certain shape."""
    return judge.hook("loss") is None or judge.metric.per_sample not in ("own", "loss")


def _wanted_shapes(workload: Workload, labels: Array) -> list[tuple[int, ...]]:
    """Return the shapes that the model's outputs may have, with the recommended shape first."""
    if workload.task == "regression":
        return [labels.shape, *([(len(labels), 1)] if labels.ndim == 1 else [])]
    return [(*labels.shape, workload.num_classes)]


def _softmax_warning(judge: Any, outputs: Array) -> list[str]:
    """Return a list with a warning if outputs that should be logits look like probabilities;
    otherwise an empty list."""
    workload = judge.workload
    is_number = workload.task == "regression" or workload.num_classes < 2
    if is_number or judge.hook("loss") or (outputs < 0).any():
        return []
    if not np.allclose(outputs.sum(axis=-1), 1, atol=1e-3):
        return []
    return [
        f"Workload {workload.name}: its model's outputs look like probabilities (each row sums to "
        "1); remove the softmax at its end, because raybench's loss applies one, and a second one "
        "slows learning."
    ]
