"""Your own model with its own settings, as in docs/models.md.

raybench tune --workload my_model:MyModel --set space.framework=[torch] \
    --set space.model.hidden_units=[64,128,256] --trials 6 --out results/my_model
"""

import torch

from raybench import Workload


class MyModel(Workload):
    name = "my_model"
    input_shape = (28, 28, 1)  # height, width, channels
    num_classes = 10

    def __init__(self, hidden_units: int = 128, dropout: float = 0.0) -> None:
        self.hidden_units, self.dropout = hidden_units, dropout

    def build_torch(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(784, self.hidden_units),
            torch.nn.ReLU(),
            torch.nn.Dropout(self.dropout),
            torch.nn.Linear(self.hidden_units, 10),  # logits
        )
