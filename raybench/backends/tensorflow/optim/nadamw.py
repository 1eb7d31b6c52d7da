"""NAdamW for Keras: AdamW whose direction looks ahead."""

from __future__ import annotations

import keras

from raybench.backends.tensorflow.optim.adam import Adam


@keras.saving.register_keras_serializable(package="raybench")
class NAdamW(Adam):
    """AdamW with Nesterov's momentum (Dozat 2016), as in AlgoPerf (Dahl et al. 2023, 2306.07179).

        m, v, v_hat as in Adam;  w <- (1 - lr wd) w
        n_hat = (beta1 m + (1 - beta1) g) / (1 - beta1^t)
        w <- w - lr n_hat / (sqrt(v_hat) + epsilon)

    So do AlgoPerf's baseline and timm's NAdamW. torch.optim.NAdam and keras.optimizers.Nadam let
    the momentum grow by a schedule of Dozat's, at two different paces. Biases and norm parameters
    (ndim <= 1) are left out of weight decay while `exclude_1d` holds.
    """

    NESTEROV = True
