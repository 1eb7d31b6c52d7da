"""`python -m raybench.train`: train one run spec, print its curve and ledger, save the model."""

from functools import partial

from raybench.commands import cli

parser = partial(cli.parser_of, "train", __doc__)
main = partial(cli.run_options, parser)
