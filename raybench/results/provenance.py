"""What must be known to read a result later: versions, machine, command."""

import os
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from raybench.core.secrets import redact
from raybench.core.text import clean, program

PACKAGES = ("raybench", "ray", "torch", "tensorflow", "keras", "optuna", "pandas", "numpy")


def versions() -> dict[str, str]:
    """Return the installed versions of everything that shapes a result."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return this host's name, processor and number of cores."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def command() -> str:
    """Return the command line as it was given, without secrets (`***` stands for them)."""
    module = getattr(sys.modules["__main__"], "__spec__", None)
    began = ["python", "-m", module.name] if module else [program()]
    arguments = redact([*began, *sys.argv[1:]], os.environ)
    return clean(shlex.join(arguments))


def with_session(earlier: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return what `study.yaml` says of the sessions that worked on a study, this one included.

    What the runs of the first session ran with stays; later ones stand behind it (`continued`).
    `earlier` is what the file held before, `more` what else there is to know of this session.
    """
    session = {"command": command(), "versions": versions(), "machine": machine(), **more}
    first = {key: earlier.get(key, value) for key, value in session.items()}
    later = [*(earlier.get("continued") or []), *([session] if earlier else [])]
    return first | {"continued": later}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123 (one line of a large file)
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the platform module knows less, but something
    return platform.processor() or platform.machine()
