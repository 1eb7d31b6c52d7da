"""Models by name in Keras. Mirrors torch/named."""

from raybench.backends.tensorflow.named.build import build_named as build_named
from raybench.backends.tensorflow.named.build import start_from as start_from
