"""The operations of losses and metrics in torch. Mirrors tensorflow/judging.py."""

from torch import Tensor
from torch.nn import functional

from raybench.data.dataset import IGNORED
from raybench.training import judging

Mixed = tuple[Tensor, Tensor, Tensor]
"""Labels of the samples that others are mixed with, and what the loss by the own label and that by
the other's count (N,)."""


class Judge(judging.Judge):
    """The loss and the metric of a run."""

    PREFIX = "torch"

    def floats(self, values: Tensor) -> Tensor:
        """Return float32."""
        return values.float()

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over the outputs of each sample (N,)."""
        return values if values.ndim == 1 else values.mean(dim=1)

    def mean_of_counted(self, values: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over the tokens of each sample that count (N,); 0 where none does."""
        counted = labels != IGNORED
        return (values * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)

    def errors(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return outputs - labels in the labels' shape: (N, 1) outputs are (N,) beside such."""
        return outputs.float().reshape(labels.shape) - labels.float()

    def cross_entropy(self, outputs: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        """Return that of each label, in the labels' shape."""
        if labels.ndim == 1:
            return functional.cross_entropy(
                outputs.float(), labels, reduction="none", label_smoothing=smoothing
            )
        losses = functional.cross_entropy(
            outputs.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=IGNORED,
            reduction="none",
            label_smoothing=smoothing,
        )
        return losses.reshape(labels.shape)

    def hits(self, outputs: Tensor, labels: Tensor, most: int) -> Tensor:
        """Whether the label's output is among the `most` largest, in the labels' shape."""
        if most == 1:
            return outputs.argmax(dim=-1) == labels
        best = outputs.topk(min(most, outputs.shape[-1]), dim=-1).indices
        return (best == labels.unsqueeze(-1)).any(dim=-1)
