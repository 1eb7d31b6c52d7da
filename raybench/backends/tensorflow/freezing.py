"""A backbone that is not trained for a while: only the head of a model is. Mirrors torch's."""

import keras

from raybench.backends.heads import no_head
from raybench.backends.tensorflow.internals import all_layers
from raybench.backends.tensorflow.named.model import NamedModel
from raybench.workloads.base import Workload


class Freezing:
    """The layers of a model that are not its head, frozen and let go again.

    What is frozen gets no gradient, no update and no weight decay; batch normalisation keeps the
    statistics that it has. The backbone of a model by name drops nothing either; a dropout among
    the frozen layers of a user's own model goes on, as Keras knows no other way.
    """

    def __init__(self, model: keras.Model, workload: Workload) -> None:
        self._layers = _backbone(model, workload)
        self.is_on = False
        """Whether the backbone is frozen now."""

    def set(self, is_on: bool) -> None:
        """Freeze the backbone, or let it go; seen by functions that are traced from now on."""
        self.is_on = is_on
        for layer in self._layers:
            layer.trainable = not is_on


def _backbone(model: keras.Model, workload: Workload) -> list[keras.layers.Layer]:
    """Return the layers to freeze: a named model's backbone, or those whose names do not begin
    with the workload's `head`. UserError where there are none, or no others."""
    if isinstance(model, NamedModel) and workload.head is None:
        return [model.backbone]
    layers = [one for one in all_layers(model) if one.trainable_variables and _has_own(one)]
    others = [one for one in layers if not one.name.startswith(workload.head or "\0")]
    if workload.head is None or not others or len(others) == len(layers):
        raise no_head(workload, [layer.name for layer in layers], "layers")
    return others


def _has_own(layer: keras.layers.Layer) -> bool:
    """Whether a layer has variables that are not a layer's below it."""
    below = {id(one) for inner in all_layers(layer)[1:] for one in inner.trainable_variables}
    return any(id(one) not in below for one in layer.trainable_variables)
