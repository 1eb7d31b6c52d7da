"""`python -m raybench.scale`; imported, it is the function `raybench.scale`."""

import sys

from raybench import api
from raybench.commands.cli import leave
from raybench.commands.scale import main

if __name__ == "__main__":
    leave(main())
elif __name__ == "raybench.scale":
    sys.modules[__name__] = api.scale  # type: ignore[assignment]
