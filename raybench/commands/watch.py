"""`python -m raybench.watch DIR`: show a study that runs in another terminal, or has ended."""

import sys
import time
from collections.abc import Sequence

from rich.console import Console, Group

from raybench.commands import cli
from raybench.report.console import make_console, say
from raybench.report.live.progress import EventLines
from raybench.report.live.replay import source_of
from raybench.report.live.screen import WHOLE, study_screen, view_for
from raybench.report.live.state import Cause
from raybench.report.show import show
from raybench.results.bucket import BucketError
from raybench.results.place import is_url
from raybench.results.study import load
from raybench.search.watched import Watched
from raybench.spec.errors import Ended, UserError
from raybench.stats.clock import unix_seconds
from raybench.stats.record import RunRecord

INTERVAL_S, URL_INTERVAL_S, LEAST_INTERVAL_S = 1.0, 5.0, 0.1


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench watch", description=__doc__)
    result.add_argument("place", metavar="DIR", help="a results folder, or the URL of one")
    result.add_argument(
        "--interval",
        type=float,
        metavar="SECONDS",
        help=f"how often to look (default {INTERVAL_S:g}; of a URL {URL_INTERVAL_S:g})",
    )
    result.add_argument("--once", action="store_true", help="show it as it is now, and end")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return parser().run(
        arguments,
        lambda options: watch(options.place, options.interval, once=options.once),
    )


def watch(place: str, interval_s: float | None = None, *, once: bool = False) -> Ended:
    """Show a study until it ends, then what came of it; with `once`, as it is now.

    It is read, never written. FAILED where its driver died.
    """
    if interval_s is None:
        interval_s = URL_INTERVAL_S if is_url(place) else INTERVAL_S
    if not interval_s >= LEAST_INTERVAL_S:
        raise UserError(f"--interval {interval_s:g}: name seconds, {LEAST_INTERVAL_S:g} or more.")
    console = make_console(sys.stdout)
    watched = Watched(source_of(place), unix_seconds())
    try:
        is_over = watched.look(unix_seconds()) or watched.driver in ("ended", "died")
    except BucketError as error:
        raise UserError(str(error)) from None
    if once and not is_over:
        console.print(_screen(console, watched, height=WHOLE))
        return _ended(watched, place)
    if not is_over:
        _follow(console, watched, interval_s)
    return _print_end(console, watched, place)


def _follow(console: Console, watched: Watched, interval_s: float) -> None:
    """Show the study as it goes on, until it ends."""
    trouble: list[str] = []

    view = view_for(console, lambda console: _screen(console, watched, trouble))
    lines = EventLines(console, watched.state)
    if view is None:
        lines.write(unix_seconds(), "watching", {})

        def ended(record: RunRecord, cause: Cause | None, at: float) -> None:
            lines.finished(record, cause, max(at, unix_seconds()), None)

        watched.replay.on_end = ended
    else:
        view.start()
    try:
        is_over = False
        while not is_over:
            time.sleep(interval_s)
            try:
                is_over = watched.look(unix_seconds())
                trouble.clear()
            except (BucketError, UserError) as error:
                trouble[:] = [f"{error} It is tried again."]
            if view is None:
                lines.status(unix_seconds())
            else:
                view.changed()
    finally:
        if view is not None:
            view.stop()


def _screen(
    console: Console, watched: Watched, trouble: Sequence[str] = (), height: int | None = None
) -> Group:
    return study_screen(
        console,
        watched.state,
        watched.now(unix_seconds()),
        has_best=watched.has_best,
        notes=[*watched.notes(), *trouble],
        height=height,
    )


def _print_end(console: Console, watched: Watched, place: str) -> Ended:
    """Print the tables of a study that has ended, or how far it came."""
    if watched.is_cut or watched.driver == "died" or watched.replay.last_s is None:
        console.print(_screen(console, watched, height=WHOLE))
    if watched.replay.last_s is not None:
        results = load(place)
        if watched.is_scaling:
            from raybench.report.scaling_report import ScalingReport

            ScalingReport.of(results).show(console, verbose=False)
        else:
            show(console, results)
    for note in watched.notes():
        say(console, note)
    return _ended(watched, place)


def _ended(watched: Watched, place: str) -> Ended:
    """Say how the driver is; a study that has written nothing yet has no results."""
    has_begun = watched.replay.last_s is not None
    is_running = watched.driver not in ("ended", "died")
    code = cli.FAILED if watched.driver == "died" else cli.DONE
    return Ended(code, place if has_begun else None, details={"is_running": is_running})
