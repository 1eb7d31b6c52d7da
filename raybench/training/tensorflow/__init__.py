"""The TensorFlow backend, the only package that imports TensorFlow and Keras 3.

This module must be imported before TensorFlow and Keras, because it sets environment variables.
"""

import contextlib
import importlib
import os
import sys

# Ray sets this to 1 in its TensorFlow workers; Keras 3 needs 0.
os.environ["TF_USE_LEGACY_KERAS"] = "0"
os.environ["KERAS_BACKEND"] = "tensorflow"
# Without a GPU, TensorFlow prints CUDA errors at import.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# TensorFlow and Triton (which torch's optimizers import) each include LLVM. A process that loads
# Triton after TensorFlow aborts (torch 2.15, TensorFlow 2.21). Loading Triton first takes 0.13 s.
if "tensorflow" not in sys.modules:
    with contextlib.suppress(ImportError):
        importlib.import_module("triton")
