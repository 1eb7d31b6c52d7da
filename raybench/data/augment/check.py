"""Which data can be changed as a file asks for: found before anything trains."""

from collections.abc import Sequence

import numpy as np

from raybench.core.augmentation import Augmentation, Mixup, RandomCrop
from raybench.core.errors import UserError
from raybench.data.augment.augmenter import is_image
from raybench.data.dataset import Dataset
from raybench.data.inputs import parts


def check_augment(dataset: Dataset, augmentations: Sequence[Augmentation]) -> None:
    """Raise UserError for `augment` that these data cannot be given."""
    if sum(isinstance(one, Mixup) for one in augmentations) > 1:
        raise UserError("augment: mixup stands there twice; a sample is mixed once, keep one.")
    for augmentation in augmentations:
        if isinstance(augmentation, Mixup):
            _check_mixup(dataset)
        else:
            _check_images(dataset, augmentation)


def _check_images(dataset: Dataset, augmentation: Augmentation) -> None:
    images = [one for one in parts(dataset.train.inputs) if is_image(one)]
    if not images:
        raise UserError(
            f"augment: {augmentation.kind} is of images (N, height, width, channels) of uint8 or "
            f"float32, and {dataset.name} has {_shown(dataset)}; take {augmentation.kind} out."
        )
    if not isinstance(augmentation, RandomCrop):
        return
    height, width = min((one.shape[1:3] for one in images), key=min)
    if augmentation.padding >= min(height, width):
        raise UserError(
            f"augment: random_crop with padding {augmentation.padding} may cut the images of "
            f"{dataset.name}, {height} x {width} pixels, away altogether; give padding below "
            f"{min(height, width)}."
        )


def _check_mixup(dataset: Dataset) -> None:
    if dataset.task == "language_modelling":
        raise UserError(
            f"augment: mixup is of numbers, and {dataset.name} has tokens; take mixup out."
        )
    kinds = {np.dtype(one.dtype) for one in parts(dataset.train.inputs)}
    if not kinds <= {np.dtype(np.uint8), np.dtype(np.float32)}:
        raise UserError(
            f"augment: mixup is of uint8 and float32 inputs, and {dataset.name} has "
            f"{_shown(dataset)}: whole numbers such as tokens cannot be mixed; take mixup out."
        )


def _shown(dataset: Dataset) -> str:
    """Return type and shape of the inputs in words."""
    inputs = dataset.train.inputs
    named = inputs if isinstance(inputs, dict) else {"": inputs}
    return ", ".join(
        f"{name} {np.dtype(one.dtype)} {tuple(one.shape)}".strip() for name, one in named.items()
    )
