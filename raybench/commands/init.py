"""`raybench init`: inspect a dataset and write a search space for it."""

from pathlib import Path

from raybench.data.summary import DataSummary, summarize, summarize_dataset
from raybench.models.find import load_workload_dataset
from raybench.models.starter import space_text, start_for
from raybench.results.store import write_out
from raybench.runs.options import InitOptions
from raybench.spec.dataset_spec import DatasetSpec
from raybench.spec.errors import DONE, Ended, ErrorCode, UserError
from raybench.spec.text import command_line


def init(options: InitOptions) -> Ended:
    """Print a summary of the data and write the search space."""
    out = options.out
    if out.exists() and not options.force:
        raise UserError(
            f"{out} exists; name another file with --out, or overwrite it with --force.",
            ErrorCode.CONFLICT,
        )
    if not out.parent.is_dir():
        raise UserError(
            f"--out {out}: the folder {out.parent} does not exist; create it first.",
            ErrorCode.NOT_FOUND,
        )
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
    return Ended(DONE, answer=[*seen.lines, task], details={"wrote": out})


def _see(options: InitOptions) -> tuple[DataSummary, str | None]:
    """Return the summary of the data, and the workload's name if a workload loads them."""
    path = Path(options.data).expanduser()
    if any("\ud800" <= character <= "\udfff" for character in str(path)):  # not valid UTF-8
        raise UserError(
            f"{str(path)!r} is not valid UTF-8, as a space file has to be; rename it.",
            ErrorCode.INVALID_VALUE,
        )
    if ":" in options.data and not path.exists():
        for key in ("label", "task"):
            if getattr(options, key):
                raise UserError(
                    f"--{key} applies to data in files; {options.data} defines it itself.",
                    ErrorCode.CONFLICT,
                )
        _, dataset = load_workload_dataset(options.data, DatasetSpec(name="workload"))
        return summarize_dataset(dataset, {"name": "workload"}), options.data
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is no file and no folder; name your data.", ErrorCode.NOT_FOUND)
    return summarize(path.resolve(), labels=options.label, task=options.task), None
