"""The networks of both frameworks in torch: torchvision's, drawn as in Keras."""

from pathlib import Path

import torch

from raybench.backends.torch.named.model import NamedModel
from raybench.workloads.named.cache import TORCH_URL, first_there, torch_folder
from raybench.workloads.named.networks import MEAN, NETWORKS, STD, initial_arrays
from raybench.workloads.named.workload import NamedWorkload


def build(workload: NamedWorkload, seed: int) -> NamedModel:
    """Return torchvision's model with the first weights of both frameworks."""
    from torchvision.models import get_model

    network = NETWORKS[workload.model]()
    with torch.device("meta"):  # nothing is drawn twice
        net = get_model(workload.model, weights=None, num_classes=workload.num_classes)
    net = net.to_empty(device="cpu")
    arrays = initial_arrays(network, workload.num_classes, seed)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    for name, own in net.state_dict().items():
        own.copy_(tensors[name] if name in tensors else torch.zeros_like(own))
    head = (f"{network.head}.weight", f"{network.head}.bias")
    return NamedModel(net, head, mean=MEAN, std=STD)


def cached(workload: NamedWorkload) -> Path:
    """Return torchvision's file of trained weights."""
    files = NETWORKS[workload.model]().weights
    return first_there(workload.name, torch_folder(), files, TORCH_URL)
