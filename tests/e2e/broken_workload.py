"""A workload with an error."""

from raybench.models.base import Workload


class Broken(Workload):
    """Workload whose model cannot be built."""

    name = "broken"
    input_shape = (28, 28, 1)
    num_classes = 10

    def build_torch(self) -> None:
        raise RuntimeError("this model cannot be built")
