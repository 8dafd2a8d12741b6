"""A stage process never outlives the one that started it, also where it is stopped or stuck and can end nothing itself.

Its thread that ends it with its stdin does not run then. Linux does it; elsewhere that thread alone does.
"""

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Have this process killed when the thread that started it is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
