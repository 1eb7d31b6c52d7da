"""`python -m raybench.compare A B`: is B better than A? Pairs of runs until it is decided."""

from functools import partial

from raybench.commands import cli

parser = partial(cli.parser_of, "compare", __doc__)
main = partial(cli.run_options, parser)
