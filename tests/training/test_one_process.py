import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        pytest.param(
            "import raybench.training.tensorflow.model, raybench.training.torch.model, "
            "torch._dynamo",
            marks=pytest.mark.all,
        ),
        pytest.param(
            "import raybench.training.torch.model, raybench.training.tensorflow.model, "
            "torch._dynamo",
            marks=pytest.mark.all,
        ),
        pytest.param(
            "import tensorflow, raybench.training.tensorflow.model", marks=pytest.mark.all
        ),
    ],
)
def test_both_frameworks_share_a_process(imports):
    """Triton and TensorFlow abort the process when they are loaded in the wrong order."""
    for framework in ("torch", "tensorflow"):
        if importlib.util.find_spec(framework) is None:
            pytest.skip(f"{framework} is not installed")
    code = f"{imports}; import keras; assert keras.backend.backend() == 'tensorflow'"
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
