"""Draw every figure that a study has: the pictures of the README and of the documentation.

    python docs/pictures.py results/digits --out docs --prefix digits_

writes `docs/digits_curves.png`, `docs/digits_pareto.png` and so on; `--only curves pareto` writes
those alone. STUDY is a results folder or URL, of a search or of a scaling study. (`python -m
raybench.report DIR --png` writes all of them into the study's own folder.)
"""

import argparse
import sys
from pathlib import Path

import raybench
from raybench.report.export import png
from raybench.report.figures.kinds import kinds_of


def main(arguments: list[str] | None = None) -> int:
    """Write the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", metavar="STUDY", help="results folder or URL")
    parser.add_argument("--out", type=Path, default=Path(), help="folder (default: this one)")
    parser.add_argument("--prefix", default="", help="of the files' names")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="figures (default: all)")
    asked = parser.parse_args(arguments)
    try:
        results = raybench.load(asked.study)
    except raybench.UserError as error:
        print(error, file=sys.stderr)
        return 2
    kinds = {name: kind for name, kind in kinds_of(results).items() if kind.applies(results)}
    unknown = [name for name in asked.only or [] if name not in kinds]
    if unknown:
        print(f"--only {unknown[0]}: choose of {', '.join(kinds)}.", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.only or kinds:
        path = asked.out / f"{asked.prefix}{name}.png"
        path.write_bytes(png(kinds[name].draw(results)))
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
