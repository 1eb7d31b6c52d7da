"""`raybench import`: make a study from runs that another tool recorded."""

from pathlib import Path

from raybench.commands.report import report
from raybench.report.confidence import DEFAULT_FOLDER
from raybench.results import foreign
from raybench.results.place import check_folder
from raybench.runs.options import ImportOptions, ReportOptions
from raybench.search.sampling.earlier import DATABASE, TABLES, read_optuna
from raybench.spec.errors import Ended, ErrorCode, UserError


def import_runs(options: ImportOptions) -> Ended:
    """Read the recorded runs, write them as a study, and print its report."""
    table = _read(options.source)
    found = foreign.match_columns(table, options.columns, options.metric, options.direction)
    folder = Path(options.name)
    if folder.name == options.name:
        folder = Path(DEFAULT_FOLDER) / options.name
    if folder.exists():
        raise UserError(
            f"--as {options.name}: {folder} exists; name another, or delete it.",
            ErrorCode.STUDY_CHANGED,
        )
    check_folder(folder)
    foreign.write_imported(folder, table, *found, options.target)
    return report(ReportOptions(folders=[str(folder)]))


def _read(source: str) -> foreign.ForeignTable:
    """Read runs from a CSV file, an MLflow folder or an Optuna storage."""
    path = Path(source.partition("#")[0])
    if not (DATABASE.match(source) or path.exists()):
        message = f"{source}: is not there; name a CSV, a folder of MLflow or an Optuna storage."
        raise UserError(message, ErrorCode.NOT_FOUND)
    if path.is_dir():
        return foreign.read_mlflow(path)
    is_table = path.suffix.lower() in TABLES
    return foreign.read_csv(path) if is_table else read_optuna(source)
