"""Trial of a user's model before a study starts, in a process per framework, in parallel.

`python -m raybench.training.check_model` is such a process: it reads a request with arrays from
stdin and prints the answer as JSON.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from raybench.models.base import DataShape, LayerWorkload, OwnLoop
from raybench.models.find import find_workload, load_workload_dataset
from raybench.models.user_code import user_code_errors
from raybench.spec.documents import validate
from raybench.spec.errors import ErrorCode, UserError
from raybench.spec.metric import find_metric
from raybench.spec.run import RunSpec
from raybench.training.base import find_part
from raybench.training.machine import nvml_sees
from raybench.training.own import pack_arrays, unpack_arrays
from raybench.training.probe import Probed, check_start, needs_check, start_warnings

SAMPLES = 8
"""Training samples of a trial: enough for batch normalization, few enough to be fast."""
TIMEOUT_S = 300.0
"""Timeout of a trial in seconds."""


def check_models(spec: RunSpec, frameworks: list[str], *, others: Sequence[RunSpec] = ()) -> Probed:
    """Try the user's model in each framework.

    Builds it and takes a small batch of the real data through model, loss and backward pass.
    Shipped workloads and those given by layers are known to work and are not tried.

    Args:
        spec: The run spec.
        frameworks: Frameworks to try.
        others: Specs with other settings of the model, or with another start (weights, frozen
            epochs), which is checked without a batch.

    Returns:
        The warnings of all frameworks.

    Raises:
        UserError: The model cannot be trained; `details` holds the traceback.
    """
    workload, dataset = load_workload_dataset(spec.workload, spec.dataset, spec.model, spec.data)
    if isinstance(workload, OwnLoop):
        return Probed([])
    for other in others:  # checks the settings that its constructor takes
        if other.model != spec.model:
            find_workload(spec.workload, DataShape.of(dataset), other.model)
    if isinstance(workload, LayerWorkload) and not any(map(needs_check, (spec, *others))):
        return Probed([])
    rows = np.arange(min(SAMPLES, len(dataset.train)))
    with user_code_errors(f"Dataset {dataset.name}: reading its first samples failed"):
        inputs = dataset.train.read(rows)
    request: dict[str, Any] = {
        "spec": spec.document(),
        "others": [other.document() for other in others],
        "shape": asdict(DataShape.of(dataset)),
        "inputs": inputs,
        "labels": dataset.train.labels[rows],
    }
    with contextlib.ExitStack() as closing, ThreadPoolExecutor(len(frameworks)) as pool:
        processes = [closing.enter_context(_start(request)) for _ in frameworks]
        try:
            requests = [request | {"framework": one} for one in frameworks]
            answers = list(pool.map(_answer, requests, processes))
        finally:  # after Ctrl-C too, which would otherwise wait for them
            for process in processes:
                process.kill()
    own = [one for start in (spec, *others) for one in start_warnings(workload, start)]
    return Probed(
        list(dict.fromkeys(own)) + [warning for answer in answers for warning in answer.warnings],
        any(answer.batch_statistics for answer in answers),
    )


def _start(request: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start a process that tries the model."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    if not request["spec"]["gpus_per_worker"]:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.Popen(
        [sys.executable, "-m", "raybench.training.check_model"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )


def _answer(request: dict[str, Any], process: "subprocess.Popen[bytes]") -> Probed:
    """Send the request and return its answer; raise UserError if the model cannot be trained."""
    workload, framework = request["spec"]["workload"], request["framework"]
    what = f"Workload {workload}: the trial of its model in {framework}"
    details = ""
    try:
        answer, errors = process.communicate(pack_arrays(request), timeout=TIMEOUT_S)
        if process.returncode == 0 and answer:
            content = json.loads(answer)
            if "error" in content:
                raise UserError(content["error"], ErrorCode(content["code"]), content["details"])
            return Probed(**content)
        code, details = process.returncode, errors.decode(errors="replace")
        end = f"ended with {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    except subprocess.TimeoutExpired:
        end = f"took longer than {TIMEOUT_S:g} s; make it smaller or faster"
    # Without a GPU on this machine, the model may just be too large for its CPUs.
    if request["spec"]["gpus_per_worker"] and not nvml_sees().names:
        return Probed([f"{what}, without a GPU, {end}."])
    raise UserError(f"{what} {end}.", ErrorCode.INVALID_MODEL, details=details)


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """Try the model of a request, in this process."""
    spec = validate(RunSpec, request["spec"], "spec")
    try:
        shape = TypeAdapter(DataShape).validate_python(request["shape"])
        probe = find_part(request["framework"], "probe")
        starts = [spec, *(validate(RunSpec, one, "spec") for one in request["others"])]
        workloads = [find_workload(spec.workload, shape, one.model) for one in starts]
        warnings = [
            sentence
            for workload, one in zip(workloads, starts, strict=True)
            for sentence in check_start(request["framework"], workload, one)
        ]
        sample = request["inputs"], request["labels"]
        seen: list[object] = []
        has_statistics = False
        for workload, one in zip(workloads, starts, strict=True):
            if one.model in seen:
                continue
            seen.append(one.model)
            metric = find_metric(spec.objective.metric, task=workload.task, own=workload.metric)
            given = {"gpu": bool(spec.gpus_per_worker), "smoothing": spec.label_smoothing}
            trial = probe.Trial(workload, metric, **given)
            try:
                probed: Probed = trial.run(*sample)
            except UserError as error:
                if not trial.needs_gpu(error):
                    raise
                probed = trial.untried("has no GPU")
            warnings += probed.warnings
            has_statistics |= probed.batch_statistics
        return {
            "warnings": list(dict.fromkeys(warnings)),
            "batch_statistics": has_statistics and not spec.sync_batch_norm,
        }
    except UserError as error:
        return {
            "error": str(error),
            "code": error.code,
            "details": error.details or traceback.format_exc(),
        }


def main() -> None:
    """Answer on the original stdout; output of user code goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    request = unpack_arrays(sys.stdin.buffer.read())
    print(json.dumps(answer_request(request)), file=answers, flush=True)
    os._exit(0)  # skips the slow shutdown of the frameworks


if __name__ == "__main__":
    main()
