"""`python -m raybench.tune`: search a space for the configuration that gets there soonest."""

from functools import partial

from raybench.commands import cli

parser = partial(cli.parser_of, "tune", __doc__)
main = partial(cli.run_options, parser)
