"""Names that were removed: commands, options, keys and values, with what replaces each."""

REMOVED = {
    **dict.fromkeys(
        (f"{name} --hosts" for name in ("compare", "scale", "train", "tune")),
        "diagnose names the worker that the others wait for",
    ),
    "optimizer lion": "name a library's class: keras:Lion, torch:pytorch_optimizer.Lion",
    "optimizer nadamw": "name a library's class: torch:NAdam, keras:Nadam",
    "optimizer schedule_free_adamw": "name a library's class: torch:schedulefree.AdamWScheduleFree",
    "transfer --check": "it was of muP, which made the rate of a large model no better known",
    "report --as": "best.yaml holds every number of the winner",
    "key mup_base": "it made the rate of a large model no better known; leave it out, and give "
    "transfer studies of several sizes",
    "key spot": "name its price as that of a machine; losses of machines are not predicted",
    "watch": "the command that runs a study shows it, --log tensorboard and optuna-dashboard "
    "DIR/optuna.log follow it from elsewhere, and report reads what is recorded so far",
}
"""Replacement, as the end of a sentence, by the name that a user writes; for an option the
name of its command stands before it, for a key the word "key"."""


def removed(name: str) -> str | None:
    """Return why `name` is refused, the end of a sentence without its full stop; None for a name
    that was never removed."""
    instead = REMOVED.get(name)
    return None if instead is None else f"was removed; {instead}"
