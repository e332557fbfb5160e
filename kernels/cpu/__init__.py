"""The CPU's operators: compiled on first use where there is a C++ compiler, plain torch where there is none.

`operators()` gives the one or the other; both have the functions, and keep to the contracts, of plain.py.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

# "plain" takes the plain operators though a compiler is there.
ENVIRONMENT = "DESCANT_CPU_OPERATORS"


@cache
def operators() -> Any:
    """The module of operators for this process: compiled.py's, or plain.py.

    Raises:
        ValueError: the environment variable has another value than compiled or plain.
    """
    from descant.kernels.cpu import compiled, plain

    wanted = os.environ.get(ENVIRONMENT, "compiled")
    if wanted not in ("compiled", "plain"):
        raise ValueError(f"{ENVIRONMENT}={wanted} is unknown; set it to compiled or plain, or leave it unset.")
    return compiled if wanted == "compiled" and compiled.build() is None else plain
