"""Done before any test module is imported."""

# It settles the order in which LLVM's two users (Triton, TensorFlow) load; imports neither
# framework itself.
import raybench.backends.tensorflow  # noqa: F401
