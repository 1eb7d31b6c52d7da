"""What Ray Tune reads from the environment, set before Ray starts."""

import os


def prepare_environment() -> None:
    """Set what Tune reads from the environment; called before Ray starts."""
    os.environ.update(
        {
            "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
            "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Control listens instead
            "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a failed trial has no accuracy
            "RAY_AIR_NEW_OUTPUT": "0",
        }
    )
