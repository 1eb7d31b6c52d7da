"""`python -m raybench` lists the commands, `python -m raybench COMMAND ...` runs a command."""

from raybench.commands import cli

if __name__ == "__main__":
    cli.leave(cli.main())
