"""Optimizers for Keras, each with the update of its torch namesake."""

from raybench.backends.tensorflow.optim.adam import Adam as Adam
from raybench.backends.tensorflow.optim.build import OPTIMIZERS as OPTIMIZERS
from raybench.backends.tensorflow.optim.build import build_optimizer as build_optimizer
from raybench.backends.tensorflow.optim.clipping import clip_gradients as clip_gradients
from raybench.backends.tensorflow.optim.lamb import Lamb as Lamb
from raybench.backends.tensorflow.optim.lars import Lars as Lars
from raybench.backends.tensorflow.optim.lion import Lion as Lion
from raybench.backends.tensorflow.optim.muon import Muon as Muon
from raybench.backends.tensorflow.optim.nadamw import NAdamW as NAdamW
from raybench.backends.tensorflow.optim.radam import RAdam as RAdam
from raybench.backends.tensorflow.optim.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
from raybench.backends.tensorflow.optim.sgd import Sgd as Sgd
