"""A model of your own, in the README's words.

raybench tune --workload my_model:MyModel --set space.framework=[torch] --trials 6
"""

import torch

from raybench import Workload


class MyModel(Workload):
    name = "my_model"
    input_shape = (28, 28, 1)  # height, width, channels
    num_classes = 10

    def build_torch(self) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Flatten(),
            torch.nn.Linear(784, 128),
            torch.nn.ReLU(),
            torch.nn.Linear(128, 10),  # logits
        )
