"""Both frameworks in one process, in whichever order they are loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.all
@pytest.mark.parametrize(
    "modules",
    [
        "raybench.training.tensorflow.model, raybench.training.torch.model, torch._dynamo",
        "raybench.training.torch.model, raybench.training.tensorflow.model, torch._dynamo",
        "tensorflow, raybench.training.tensorflow.model",
    ],
)
def test_both_frameworks_share_a_process(modules):
    """Triton and TensorFlow abort the process when they are loaded in the wrong order."""
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    code = f"import {modules}, keras; assert keras.backend.backend() == 'tensorflow'"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TF_USE_LEGACY_KERAS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-2000:]
