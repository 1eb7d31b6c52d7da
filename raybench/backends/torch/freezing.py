"""A backbone that is not trained for a while: only the head of a model is. Mirrors tensorflow's."""

import contextlib
from collections.abc import Iterator

from torch import nn

from raybench.backends.heads import no_head
from raybench.workloads.base import Workload


class Freezing:
    """The parts of a model that are not its head, frozen and let go again.

    What is frozen gets no gradient, no update and no weight decay, and works as in evaluation:
    batch normalisation keeps the statistics that it has, dropout drops nothing. What has no
    parameters beside the head (a dropout before it) stays the head's.
    """

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        head = head_names(model, workload)
        self._model = model
        self._frozen = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and name not in head
        ]
        self._still = list(_without(model, "", head))
        self.is_on = False
        """Whether the backbone is frozen now."""

    def set(self, is_on: bool) -> None:
        """Freeze the backbone, or let it go; for the model as it is outside of DDP."""
        self.is_on = is_on
        for _, parameter in self._frozen:
            parameter.requires_grad_(not is_on)
            parameter.grad = None

    @contextlib.contextmanager
    def let_go(self) -> Iterator[None]:
        """Let go what is frozen inside, gradients aside: for who asks which are trained at all."""
        for _, parameter in self._frozen:
            parameter.requires_grad_(True)
        yield
        for _, parameter in self._frozen:
            parameter.requires_grad_(not self.is_on)

    def train(self) -> None:
        """Put what is frozen into evaluation, after the model was put into training."""
        if self.is_on:
            for module in self._still:
                module.eval()


def head_names(model: nn.Module, workload: Workload) -> set[str]:
    """Return the names of the head's parameters: those that a model by name knows, or that begin
    with the workload's `head`. UserError where there are none, or no others."""
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    prefix = workload.head
    known = getattr(model, "head", ()) if prefix is None else ()
    head = {name for name in names if name in known or (prefix and name.startswith(prefix))}
    if not head or len(head) == len(names):
        raise no_head(workload, names, "parameters")
    return head


def _without(module: nn.Module, prefix: str, head: set[str]) -> "list[nn.Module]":
    """Return the largest modules that have parameters or buffers, and none of the head's."""
    own = [f"{prefix}{name}" for name, _ in module.named_parameters()]
    if not any(name in head for name in own):
        return [module] if own or any(True for _ in module.buffers()) else []
    found: list[nn.Module] = []
    for name, child in module.named_children():
        found += _without(child, f"{prefix}{name}.", head)
    return found
