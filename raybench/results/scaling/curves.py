"""Speed-up curves: cells that may be drawn as one line, and the refusal of those that may not.

Studies that mixed weak with strong scaling, or one machine with another, in one figure have said
of frameworks what was true of neither; so nothing here draws such a line.
"""

import pandas as pd

from raybench.core.errors import UserError

ONE_OF = {
    "scaling": "weak and strong scaling (the batch of a worker stays in one, of all in the other)",
    "topology": "topologies",
    "framework": "frameworks",
    "strategy": "strategies",
    "workload": "workloads",
    "dataset": "datasets",
    "exchange_gradients": "runs with and without exchange of gradients",
    "curve": "series or batches",
}
"""What a curve has one value of, and what several of them are; what says most first."""


def speedup_curve(cells: pd.DataFrame) -> pd.DataFrame:
    """Return cells (rows of `raybench.load(DIR).scaling`) as one curve, by number of workers.

    UserError where they are no one curve: weak and strong scaling, two topologies, series or
    batches, or two cells with as many workers.
    """
    for column, words in ONE_OF.items():
        values = list(dict.fromkeys(cells[column]))
        if len(values) > 1:
            raise UserError(
                f"a speed-up curve never mixes {words}, and here are "
                f"{_list([str(value) for value in values])}: choose one, such as "
                f"scaling[scaling[{column!r}] == {values[0]!r}]."
            )
    twice = cells[cells["num_workers"].duplicated()]
    if len(twice):
        workers = int(twice["num_workers"].iloc[0])
        same = cells[cells["num_workers"] == workers]
        on = sorted(set(same["num_nodes"]))
        what = (
            f"on {_list([str(nodes) for nodes in on])} hosts, which are two topologies"
            if len(on) > 1
            else f"of several cells ({_list(list(same['cell']))})"
        )
        raise UserError(
            f"a speed-up curve has one cell for each number of workers, and {len(same)} here have "
            f"{workers}, {what}: choose those of one."
        )
    return cells.sort_values("num_workers", ignore_index=True)


def curves_of(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return all speed-up curves of a study by their name, each as `speedup_curve` has it.

    Left out are cells without a speed-up, runs that exchange no gradients (they are no training),
    and cells on more hosts than others with as many workers (`on_more_hosts`).
    """
    usable = cells[cells["speedup"].notna() & cells["exchange_gradients"]]
    usable = usable.drop(on_more_hosts(usable).index)
    return {str(name): speedup_curve(group) for name, group in usable.groupby("curve", sort=False)}


def on_more_hosts(cells: pd.DataFrame) -> pd.DataFrame:
    """Return cells that ran on more hosts than others of the same curve with as many workers."""
    fewest = cells.groupby(["curve", "num_workers"])["num_nodes"].transform("min")
    return cells[cells["num_nodes"] > fewest]


def _list(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 2 else words)
