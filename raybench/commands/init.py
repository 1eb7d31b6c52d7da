"""`python -m raybench.init`: look at your data, and write a space file for them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from raybench.commands import cli
from raybench.data.summary import DataSummary, summarize, summarize_dataset
from raybench.models.find import load_workload_dataset
from raybench.models.starter import space_text, start_for
from raybench.results.store import write_out
from raybench.spec.dataset_spec import TASKS, DatasetSpec
from raybench.spec.errors import Ended, UserError
from raybench.spec.run import FRAMEWORKS
from raybench.spec.text import command_line

DEFAULT_OUT = "space.yaml"


def parser() -> cli.Parser:
    """Return the command's arguments."""
    result = cli.Parser(prog="raybench init", description=__doc__)
    result.add_argument(
        "data",
        metavar="PATH_OR_CLASS",
        help="folder of images or texts, .csv, .parquet, .npz or .txt file, folder of Hugging "
        "Face's save_to_disk, or module:Class of a workload with load_dataset",
    )
    result.add_argument(
        "--label",
        metavar="COLUMN",
        action="append",
        help="column to learn, of a table; several (--label a --label b, or a,b) are a vector",
    )
    result.add_argument("--task", choices=TASKS, help="what to learn (default: told by the labels)")
    result.add_argument(
        "--framework", choices=FRAMEWORKS, help="search one alone (default: all installed)"
    )
    result.add_argument(
        "--out", type=Path, default=Path(DEFAULT_OUT), metavar="FILE", help=f"({DEFAULT_OUT})"
    )
    result.add_argument("--force", action="store_true", help="write over the file if it is there")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return parser().run(arguments, init)


def init(options: argparse.Namespace) -> Ended:
    """Look, print what was seen, and write the file."""
    out: Path = options.out
    if out.exists() and not options.force:
        raise UserError(f"{out} is there already; name another file by --out, or give --force.")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}; make it first.")
    seen, workload = _see(options)
    for line in seen.lines:
        print(line)
    start = start_for(seen, options.framework, workload)
    write_out(out, space_text(seen, start, file=out))
    task = f"Task: {seen.task.replace('_', ' ')}; workload {start.workload} ({start.comment})."
    print(
        f"{task}\n\nWrote {out}: look through it, then\n"
        f"  {command_line('tune', out, '--dry-run')}\n"
        f"  {command_line('tune', out)}"
    )
    return Ended(cli.DONE, answer=[*seen.lines, task], details={"wrote": out})


def _see(options: argparse.Namespace) -> tuple[DataSummary, str | None]:
    """Return what was seen of the data, and the user's own workload if they named one."""
    path = Path(options.data).expanduser()
    if any("\ud800" <= character <= "\udfff" for character in str(path)):  # bytes, no UTF-8
        raise UserError(f"{str(path)!r} is no name that a space file can hold; rename it.")
    if ":" in options.data and not path.exists():
        for key in ("label", "task"):
            if getattr(options, key) is not None:
                raise UserError(f"--{key} is for data in files; {options.data} says it itself.")
        _, dataset = load_workload_dataset(options.data, DatasetSpec(name="workload"))
        return summarize_dataset(dataset, {"name": "workload"}), options.data
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is no file and no folder; name your data.")
    return summarize(path.resolve(), labels=options.label or (), task=options.task), None
