"""`python -m raybench.compare`; imported, it is the function `raybench.compare`."""

import sys

from raybench import api
from raybench.commands.cli import leave
from raybench.commands.compare import main

if __name__ == "__main__":
    leave(main())
elif __name__ == "raybench.compare":
    sys.modules[__name__] = api.compare  # type: ignore[assignment]
