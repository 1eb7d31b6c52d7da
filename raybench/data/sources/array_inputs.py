"""Arrays of inputs as a split takes them: pixels, numbers or tokens."""

from typing import Any

import numpy as np
import numpy.typing as npt

from raybench.core.errors import UserError
from raybench.core.spec import DatasetSpec
from raybench.data.sources.images import ImageForm, fit
from raybench.data.store.writer import Writer

Array = npt.NDArray[Any]
CHANNELS = (1, 3)
_CHUNK = 2**26  # bytes copied at a time


def as_inputs(array: Array, place: str) -> Array:
    """Return an array as uint8, float32, int32 or int64; images as (N, H, W, C).

    UserError naming `place` for text and objects, and for images whose channels come first.
    """
    if array.ndim == 4 and array.shape[-1] not in CHANNELS and array.shape[1] in CHANNELS:
        raise UserError(
            f"{place}: images of shape {array.shape[1:]} have their channels first; transpose them "
            "to (height, width, channels): x.transpose(0, 2, 3, 1)."
        )
    if array.dtype == np.uint8:
        return array[..., None] if array.ndim == 3 else array
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    if array.dtype.kind == "b":
        return array.astype(np.float32)
    if array.dtype.kind in "iu":
        is_small = array.size == 0 or (abs(int(array.min())) < 2**31 and int(array.max()) < 2**31)
        return array.astype(np.int32 if is_small else np.int64, copy=False)
    raise UserError(
        f"{place}: inputs of type {array.dtype} are no numbers; save them as uint8 (pixels), "
        "float32 or int32 (tokens)."
    )


def write_inputs(
    writer: Writer, name: str, inputs: Array, order: npt.NDArray[np.int64], spec: DatasetSpec
) -> None:
    """Write the samples in `order`, a part at a time; images in the size that is asked for."""
    form = _form(inputs, spec)
    shape = inputs.shape[1:] if form is None else form.shape
    target = writer.array(name, (len(inputs), *shape), inputs.dtype)
    rows = max(1, _CHUNK // max(1, int(np.prod(shape)) * inputs.dtype.itemsize))
    for start in range(0, len(order), rows):
        chunk = inputs[order[start : start + rows]]
        if form is not None:
            chunk = np.stack([fit(image, form) for image in chunk])
        target[start : start + rows] = chunk


def _form(inputs: Array, spec: DatasetSpec) -> ImageForm | None:
    """Return what images become; None where they stay as they are."""
    if spec.image_size is None and spec.channels is None:
        return None
    if inputs.dtype != np.uint8 or inputs.ndim != 4 or inputs.shape[-1] not in CHANNELS:
        key = "image_size" if spec.image_size is not None else "channels"
        raise UserError(
            f"dataset.{key}: the inputs are {inputs.dtype} of shape {inputs.shape[1:]}, and only "
            "uint8 images (height, width, 1 or 3) can be changed; leave the key out."
        )
    height, width, channels = inputs.shape[1:]
    form = ImageForm(
        height=spec.image_size or height,
        width=spec.image_size or width,
        channels=spec.channels or channels,
        is_scaled=spec.image_size is not None,
        is_greyed=spec.channels is not None,
        resize=spec.resize,
    )
    return None if form.shape == inputs.shape[1:] else form
