"""`prices.yaml`, the file of rentable machines and their prices that `raybench plan` reads.

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
from raybench.spec.errors import ErrorCode, UserError

CPU = "cpu"


class MachinePrice(Document):
    """A type of machine that can be rented, and its price."""

    accelerator: str = CPU
    """Ray's name for the GPU model, such as `A100` (see `accelerators` in `trials.csv`), or
    `cpu`."""
    workers: PositiveInt
    """Maximum number of workers on one machine, such as its number of GPUs."""
    price: PositiveFloat
    """Price of one machine per hour, however many workers it runs."""
    billing_step_s: NonNegativeFloat = 1.0
    """Billing increment in seconds: 3600 bills every started hour, 0 bills exact seconds."""
    startup_s: NonNegativeFloat = 0.0
    """Seconds from ordering a machine until workers can start on it; they are billed too."""


def read_prices(prices: str | Path | dict[str, Any]) -> dict[str, MachinePrice]:
    """Return the rentable machines by name.

    Args:
        prices: Path of a prices file, or its content.

    Raises:
        UserError: The file cannot be read, is invalid, or lists no machines.
    """
    content, source = content_of(prices, "prices")
    if not content:
        raise UserError(
            f"{source}: lists no machines; add one, such as p4d: {{workers: 8, price: 33}}.",
            ErrorCode.MISSING,
        )
    machines = {}
    for name, machine in content.items():
        if not isinstance(machine, dict):
            raise UserError(
                f"{source}: '{name}': must be a mapping with the keys workers, price, ...",
                ErrorCode.INVALID_VALUE,
            )
        machines[str(name)] = validate(MachinePrice, machine, f"{source}, {name}")
    return machines
