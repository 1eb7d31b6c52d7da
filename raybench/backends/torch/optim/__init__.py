"""Optimizers for torch: ours where no library gives them right, torch's where it does."""

from raybench.backends.torch.optim.build import OPTIMIZERS as OPTIMIZERS
from raybench.backends.torch.optim.build import build_optimizer as build_optimizer
from raybench.backends.torch.optim.clipping import clip_gradients as clip_gradients
from raybench.backends.torch.optim.lamb import Lamb as Lamb
from raybench.backends.torch.optim.lars import Lars as Lars
from raybench.backends.torch.optim.lion import Lion as Lion
from raybench.backends.torch.optim.muon import Muon as Muon
from raybench.backends.torch.optim.nadamw import NAdamW as NAdamW
from raybench.backends.torch.optim.radam import RAdam as RAdam
from raybench.backends.torch.optim.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
