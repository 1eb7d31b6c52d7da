"""A run as plain framework code that imports nothing of raybench: `raybench report --as torch`.

It has the optimizer, the schedule, a step and the loop, and takes the same steps; model, data and
loss are the user's own. Its parts are in `as_code.txt`, the equations in a form that both
frameworks read: arithmetic, with `norm`, `sign`, `where` and `cast` of each.
"""

from functools import cache
from pathlib import Path
from string import Template
from typing import Literal

from raybench.spec.errors import UserError
from raybench.spec.optimizer import DEFAULTS, FRAMEWORK_OF, framework_of
from raybench.spec.run import RunSpec
from raybench.spec.schedule import scaled_rate, warmup_start
from raybench.spec.values import short

Kind = Literal["torch", "keras"]
IMPORTS = {"torch": ("torch",), "keras": ("keras", "tensorflow as tf")}
MODULES = {"torch": "torch.optim", "keras": "keras.optimizers"}
STATES = {"sgd": "b", "lars": "b", "lion": "m"}
"""What an optimizer keeps of each weight; others the two moments."""
ADAMW = ("torch.optim.AdamW", ", betas=($beta1, $beta2), eps=$epsilon")
TORCHS = {
    "adam": ADAMW,
    "adamw": ADAMW,
    "radam": ("torch.optim.RAdam", f"{ADAMW[1]}, decoupled_weight_decay=True"),
    "sgd": ("torch.optim.SGD", ", momentum=$momentum, nesterov=$nesterov"),
}
"""Of ours what torch's own classes compute."""
ELSEWHERE = {
    "schedule_free_adamw": "for torch AdamWScheduleFree of the package schedulefree takes them",
    "muon": "torch.optim.Muon and keras.optimizers.Muon take similar ones",
}
NOT_HERE: tuple[str, ...] = ("precision", "label_smoothing", "augment", "weights", "frozen_epochs")
NOT_HERE += ("mup_base", "sync_batch_norm", "gradient_compression", "strategy", "compile")
"""Keys that the code names and does not have."""


def code_of(spec: RunSpec, kind: Kind) -> str:
    """Return a run as the code of a framework; UserError for an optimizer that is not of it."""
    name, wanted, parts = spec.optimizer, framework_of(spec.optimizer), _parts()
    if name in ELSEWHERE:
        raise UserError(f"--as {kind}: the steps of {name} are not printed; {ELSEWHERE[name]}.")
    if wanted not in (None, FRAMEWORK_OF[kind]):
        raise UserError(f"--as {kind}: {name} is of {wanted}; ask for the code of that.")
    told = {key: getattr(spec, key) for key in NOT_HERE}
    missing = [f"{k} {short(v)}" for k, v in told.items() if v != RunSpec.model_fields[k].default]
    module = name.partition(":")[2].rpartition(".")[0]
    processes = spec.num_workers if kind == "torch" else 1
    size = spec.batch_size_per_worker * spec.num_workers // processes
    each = f", in each of {processes} processes of DistributedDataParallel"
    found: dict[str, object] = {
        "batches": f"{size} samples{each if processes > 1 else ''}",
        "missing": f"\nNot in this code: {', '.join(missing)}." if missing else "",
        "imports": "\n".join(f"import {one}" for one in (*IMPORTS[kind], module) if one),
        "schedule": _body(parts[spec.schedule]),
        "warmup": spec.warmup_samples or f"{spec.warmup_epochs} * samples_per_epoch",
        "made": _optimizer(spec, kind),
        "step": parts[f"{kind} step"],
        "average": "" if spec.ema_decay is None else parts["average"],
        "clipped": "" if spec.clip_norm is None else parts[f"{kind} clipped"],
        "peak": scaled_rate(spec),
        "start": warmup_start(spec),
        "global_batch": spec.global_batch_size,
        "processes": processes,
    }
    found |= {"nesterov": spec.nesterov and spec.momentum != 0}
    given = {key: one for key, one in spec.model_dump().items() if one is not None}
    values: dict[str, object] = {**DEFAULTS.get(name, {}), **given, **found}
    text = parts["code"]
    while "$" in text:  # parts hold others
        text = Template(text).substitute(values)
    return f"{text}\n"


def _optimizer(spec: RunSpec, kind: Kind) -> str:
    """Return what makes the optimizer, and its class where no library has the same steps."""
    name, path, parts = spec.optimizer, spec.optimizer.partition(":")[2], _parts()
    made = path if "." in path else f"{MODULES[kind]}.{path}"
    options = "".join(f", {key}={_plain(one)}" for key, one in spec.optimizer_options.items())
    if kind == "torch" and name in TORCHS:
        made, options = TORCHS[name]
    if path or (kind == "torch" and name in TORCHS):
        return parts[f"{kind} library"].replace("$class", made).replace("$options", options)
    equations = parts["adam" if name == "adamw" else name]
    if name not in STATES:
        equations = f"{parts['moments']}\n{equations}"
    text = parts["update"].replace("$class", parts[f"{kind} class"])
    text = text.replace("$helpers", parts[f"{kind} helpers"])
    text = text.replace("$equations", _body(equations))
    return text.replace("$states", STATES.get(name, "m, v"))


@cache
def _parts() -> dict[str, str]:
    """Return the parts of the code by their names."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    found = [part.partition("\n") for part in text.split("%% ")[1:]]
    return {name: part.rstrip("\n") for name, _, part in found}


def _body(text: str) -> str:
    """Return lines as they stand in a function, whose first is indented already."""
    return text.replace("\n", "\n    ")


def _plain(value: object) -> str:
    return repr(tuple(value) if isinstance(value, list) else value)
