"""Augmentation of training samples, keyed by (seed, round, sample), for both frameworks."""

from raybench.data.augment.augmenter import Augmented as Augmented
from raybench.data.augment.augmenter import Augmenter as Augmenter
from raybench.data.augment.augmenter import check_augment as check_augment
