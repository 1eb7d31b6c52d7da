"""Equations and settings of the optimizers, for both frameworks.

w is a weight, g its gradient, lr the learning rate, wd the weight decay, t the number of steps.
m, v, m_hat and v_hat are Adam's moments. Biases and the parameters of normalization layers
(ndim <= 1) have neither weight decay nor a trust ratio, because with a trust ratio a bias that
starts at 0 would hardly change. Classes of torch are used where they compute exactly these
equations: AdamW, RAdam and SGD.

`adam`, `adamw` (Kingma, Ba 2014, arXiv:1412.6980, Algorithm 1; decoupled decay: 1711.05101)

    m <- beta1 m + (1 - beta1) g            m_hat = m / (1 - beta1^t)
    v <- beta2 v + (1 - beta2) g^2          v_hat = v / (1 - beta2^t)
    w <- (1 - lr wd) w - lr m_hat / (sqrt(v_hat) + epsilon)

keras.optimizers.Adam adds epsilon to sqrt(v), so that at the first step epsilon has 32 times the
effect.

`radam` (Liu et al. 2019, arXiv:1908.03265, Algorithm 2)

    w <- (1 - lr wd) w;  rho_inf = 2 / (1 - beta2) - 1
    rho_t = rho_inf - 2 t beta2^t / (1 - beta2^t)
    rho_t > 5:  w <- w - lr r_t m_hat sqrt(1 - beta2^t) / (sqrt(v) + epsilon),
        r_t^2 = (rho_t - 4)(rho_t - 2) rho_inf / ((rho_inf - 4)(rho_inf - 2) rho_t)
    otherwise:  w <- w - lr m_hat

The threshold of 5 (in the paper 4) and the position of epsilon are taken from the authors' code and
torch.optim.RAdam.

`lars` (You, Gitman, Ginsburg 2017, arXiv:1708.03888)

    ratio = trust_coefficient |w| / (|g| + wd |w|), 1 where |w| or the denominator is 0
    b <- momentum b + ratio (g + wd w);  w <- w - lr b

The paper (Algorithm 1) multiplies by lr inside the buffer b. With a constant learning rate, both
are the same. Here lr scales the whole buffer, as in torch.optim.SGD, so that a lower rate takes
effect at once.

`lamb` (You et al. 2019, arXiv:1904.00962, Algorithm 2), without clamping of the norms

    u = m_hat / (sqrt(v_hat) + epsilon) + wd w
    w <- w - lr (|w| / |u|) u, with the ratio 1 where |w| or |u| is 0

keras.optimizers.Lamb applies the trust ratio to biases, too, and the weight decay outside the
ratio.

`sgd`, as torch.optim.SGD

    b <- momentum b + g + wd w
    w <- w - lr b                           (with `nesterov`: lr (g + wd w + momentum b))

keras.optimizers.SGD multiplies by lr inside the buffer, so that after a change of the learning rate
the next steps still contain the old rate. Its weight decay is decoupled.

`muon` (Jordan et al. 2024, kellerjordan.github.io/posts/muon; scale: arXiv:2502.16982, equation 4)

    b <- momentum b + (1 - momentum) g
    o = orthogonalize((1 - momentum) g + momentum b)
    w <- (1 - lr wd) w - lr 0.2 sqrt(max(rows, columns)) o

This applies to the weight matrices between inputs and head; the kernels of convolutions are
flattened to matrices. All other parameters (embeddings, the head, biases, normalization) are
updated by AdamW. The factor 0.2 sqrt(...) makes the update of a matrix as large as an update by
AdamW, so that one learning rate and one weight decay suit both. torch.optim.Muon accepts only
matrices, and keras.optimizers.Muon leaves convolutions to Adam.
"""

from collections.abc import Callable
from typing import Any

from raybench.models.user_code import (
    check_settings,
    import_user_module,
    known_settings,
    user_code_errors,
)
from raybench.spec.errors import ErrorCode, UserError, did_you_mean
from raybench.spec.optimizer import DEFAULTS, KEY_OF
from raybench.spec.run import RunSpec


def settings_of(spec: RunSpec) -> dict[str, Any]:
    """Return the keyword arguments of a backend's `build_optimizer` for a run: learning rate,
    weight decay, options, and settings of the optimizer, such as `momentum`, that the run spec
    sets."""
    values = {name: getattr(spec, name) for name in DEFAULTS.get(spec.optimizer, ())}
    settings = {name: value for name, value in values.items() if value is not None}
    settings |= {name: getattr(spec, name) for name in ("learning_rate", "weight_decay")}
    return settings | {"options": spec.optimizer_options}


def construct(name: str, package: str, base: type, *first: Any, **given: Any) -> Any:
    """Create an optimizer from a class of a library, such as `torch:SGD`.

    Args:
        name: Framework and class, separated by a colon. The class is named with its module
            (`torch:package.module.Class`), unless its module is `package`.
        package: Module that contains the framework's optimizers.
        base: Base class of the framework's optimizers.
        *first: Positional arguments of the class, before its settings.
        **given: `learning_rate`, `weight_decay` and `options` of the run.

    Raises:
        UserError: There is no such class, it is not a subclass of `base`, or it does not accept the
            settings.
    """
    path, what = name.partition(":")[2], f"optimizer {name}"
    module_name, _, class_name = path.rpartition(".")
    module = import_user_module(module_name or package, what)
    optimizer_class = getattr(module, class_name, None)
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, base)):
        classes = [other for other in vars(module).values() if isinstance(other, type)]
        names = [
            other.__name__ for other in classes if issubclass(other, base) and other is not base
        ]
        hint = did_you_mean(class_name, names, "name one of its optimizer classes.")
        raise UserError(
            f"{what}: {module.__name__} has no optimizer {class_name}; {hint}",
            ErrorCode.UNKNOWN_NAME,
        )
    known = known_settings(optimizer_class, len(first), takes_any=False) or {}
    rate, decay = "lr" if "lr" in known else "learning_rate", given.pop("weight_decay")
    options = given.pop("options")
    accepted = {other: known[other] for other in known if other not in KEY_OF}
    check_settings(accepted, options, what, key="optimizer_options")
    options = {other: tuple(v) if isinstance(v, list) else v for other, v in options.items()}
    if decay or "weight_decay" in known:
        options["weight_decay"] = decay
    shown = ", ".join(f"{key}={value!r}" for key, value in options.items())
    with user_code_errors(
        f"{what}: cannot be created with {shown or 'its defaults'}", code=ErrorCode.INVALID_VALUE
    ):
        return optimizer_class(*first, **{rate: given["learning_rate"]}, **options)


NO_MATRICES = ("embed", "position", "depthwise")
"""Substrings of the names of layers and weights that Muon does not orthogonalize, because they are
lookup tables or depthwise filters."""
NUM_STEPS = 5
"""Number of Newton-Schulz iterations."""
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Newton-Schulz coefficients of Jordan et al. 2024. They increase small singular values fastest and
bring all of them into the range 0.7 to 1.2, which works as well as exactly 1."""
SMALLEST_NORM = 1e-7
"""Number that is added to a matrix's norm before dividing by it, to avoid dividing by 0."""
WIDE = 2
"""Ratio of columns to rows above which `newton_schulz` iterates on the Gram matrix. At a ratio of
9, as for 3 x 3 filters, this takes 0.4 times as long."""
ADAMW_RMS = 0.2
"""Root mean square of a typical AdamW update, to which Muon scales its updates."""
Matrix = Any
"""A matrix of either framework."""


def newton_schulz(
    matrix: Matrix,
    gram_matrix_of: Callable[[Matrix], Matrix],
    polynomial: Callable[[Matrix], Matrix],
) -> Matrix:
    """Return a matrix with the same singular vectors and with all singular values near 1.

    The Newton-Schulz iteration multiplies the matrix several times by a polynomial of its Gram
    matrix, which is the matrix times its transpose. If the matrix is wide, the iteration works on
    the smaller Gram matrix alone, and the wide matrix is multiplied only once, at the end.

    Args:
        matrix: Matrix of Frobenius norm 1 with at most as many rows as columns.
        gram_matrix_of: Function that multiplies a matrix by its transpose.
        polynomial: Function that returns the polynomial of a Gram matrix.
    """
    if matrix.shape[1] <= WIDE * matrix.shape[0]:
        for _ in range(NUM_STEPS):
            matrix = polynomial(gram_matrix_of(matrix)) @ matrix
        return matrix
    gram_matrix = gram_matrix_of(matrix)
    factor = step = polynomial(gram_matrix)
    for _ in range(NUM_STEPS - 1):
        gram_matrix = step @ gram_matrix @ step
        step = polynomial(gram_matrix)
        factor = step @ factor
    return factor @ matrix
