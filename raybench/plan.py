"""`python -m raybench.plan`; imported, it is the function `raybench.plan`."""

import sys

from raybench import api
from raybench.commands.cli import leave
from raybench.commands.plan import main

if __name__ == "__main__":
    leave(main())
elif __name__ == "raybench.plan":
    sys.modules[__name__] = api.plan  # type: ignore[assignment]
