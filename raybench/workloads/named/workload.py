"""A model that a library knows by name, made to fit the data; the backends build it."""

from dataclasses import dataclass

from raybench.core.spec import Task
from raybench.workloads.base import Workload
from raybench.workloads.shape import DataShape


@dataclass(frozen=True)
class NamedWorkload(Workload):
    """A library's model whose head and input size come from the data.

    Its build methods are not asked: `backends/*/named` builds it.
    """

    name: str
    """As the user wrote it: `torchvision:resnet18`, or the name alone of a network of both
    frameworks."""
    library: str
    """A key of `LIBRARIES`."""
    model: str
    """The library's name of it."""
    input_shape: "tuple[int, ...] | dict[str, tuple[int, ...]]"
    num_classes: int
    """Outputs of the head: classes, numbers of a regression, tokens of a vocabulary."""
    task: Task
    vocabulary_size: int | None = None

    @classmethod
    def of(cls, name: str, library: str, model: str, shape: DataShape) -> "NamedWorkload":
        """Return it for data of that shape."""
        return cls(
            name,
            library,
            model,
            shape.input_shape,
            shape.num_outputs,
            shape.task,
            shape.vocabulary_size,
        )
