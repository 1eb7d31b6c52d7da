"""`python -m raybench.diagnose`: say what bounds a training, and what a change would bring."""

from functools import partial

from raybench.commands import cli

parser = partial(cli.parser_of, "diagnose", __doc__)
main = partial(cli.run_options, parser)
