"""How many contenders run how often in the stages of a race, and how many runs fit a budget."""

from collections.abc import Sequence

Stages = tuple[tuple[int, int], ...]
"""(contenders, new runs of each), ..."""
MOST = 200
"""New runs of a race at most."""


def stages(number: int) -> Stages:
    """Return the stages of a race of `number` new runs; () for 0.

    Half of the runs go to as many contenders, a quarter to the better half of them, what is left
    to an eighth (two at least): 24 is ((12, 1), (6, 1), (3, 2)).
    """
    if not 0 <= number <= MOST:
        raise ValueError(f"a race has 0 to {MOST} new runs, not {number}")
    if number < 4:
        return ((number, 1),) if number else ()
    first, last = number // 2, max(2, number // 8)
    second = max(last, number // 4)
    rest, each = number - first - second, (number - first - second) // last
    second += rest - each * last if each else rest  # what does not divide
    first, second = max(first, second), min(first, second)
    return tuple((count, runs) for count, runs in ((first, 1), (second, 1), (last, each)) if runs)


def fit(
    expected: Sequence[tuple[float, int]], *, left_s: float, slots: int, most: int = 24
) -> Stages:
    """Return the stages of the longest race that ends within `left_s` seconds.

    `expected` are seconds and slots of one run of each contender, best first; `most` new runs are
    asked for. A stage takes at most its slot-seconds over the slots and its longest run besides
    (Graham, 1969). No run is cut off: races that do not fit wholly are left out.
    """
    for number in range(min(most, MOST), 0, -1):
        found = stages(number)
        if sum(_stage_s(expected[:count], runs, slots) for count, runs in found) <= left_s:
            return found
    return ()


def _stage_s(expected: Sequence[tuple[float, int]], runs: int, slots: int) -> float:
    if not expected:
        return 0.0
    work = runs * sum(seconds * width for seconds, width in expected) / slots
    return work + (1 - 1 / slots) * max(seconds for seconds, _ in expected)
