"""`prices.yaml`: what machines cost that can be hired, by their names; `raybench plan` bills them.

p4d.24xlarge:
  accelerator: A100
  workers: 8
  price: 32.77
  startup_s: 240
"""

from pathlib import Path
from typing import Any

from raybench.spec.documents import (
    Document,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    content_of,
    validate,
)
from raybench.spec.errors import UserError

CPU = "cpu"


class MachinePrice(Document):
    """A kind of machine that can be hired."""

    accelerator: str = CPU
    """Ray's name of its GPUs (`A100`: `accelerators` in `trials.csv`), or `cpu`."""
    workers: PositiveInt
    """Workers that one machine has room for: its GPUs, with one each."""
    price: PositiveFloat
    """Money per hour of one machine; all of it is paid, however few workers it has."""
    billing_step_s: NonNegativeFloat = 1.0
    """Seconds that are billed whole: 3600 bills every hour that was begun; 0 bills as it is."""
    startup_s: NonNegativeFloat = 0.0
    """Seconds from ordering a machine until workers start on it; they are billed too."""


def read_prices(given: str | Path | dict[str, Any]) -> dict[str, MachinePrice]:
    """Return the machines of a file, or of what such a file holds, by their names."""
    content, source = content_of(given, "prices")
    if not content:
        raise UserError(f"{source}: names no machine; write one, as p4d: {{workers: 8, price: 33}}")
    found = {}
    for name, one in content.items():
        if not isinstance(one, dict):
            raise UserError(f"{source}: '{name}': must hold keys of its own: workers, price, ...")
        found[str(name)] = validate(MachinePrice, one, f"{source}, {name}")
    return found
