"""Models by name in torch, of the libraries that have them. Mirrors tensorflow/named."""

from raybench.backends.torch.named.build import build_named as build_named
from raybench.backends.torch.named.build import start_from as start_from
