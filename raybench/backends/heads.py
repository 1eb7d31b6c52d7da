"""What is said where nobody knows which parameters are a model's head."""

from raybench.core.errors import UserError
from raybench.workloads.base import Workload


def no_head(workload: Workload, names: list[str], what: str) -> UserError:
    """Return the error of a model whose parts (`what`: parameters, layers) have these names."""
    shown = ", ".join([*names[:2], "...", *names[-2:]] if len(names) > 4 else names)
    if workload.head is None:
        problem = "nobody knows which is its head; set its attribute head to what the names of"
        return UserError(
            f"frozen_epochs: workload {workload.name}: {problem} the head's {what} begin with "
            f"({shown})."
        )
    return UserError(
        f"frozen_epochs: workload {workload.name}: its head '{workload.head}' must be what the "
        f"names of some of its {what} begin with, and not of all ({shown})."
    )
