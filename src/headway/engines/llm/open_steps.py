"""What a device engine remembers of a step whose results are not fetched yet."""

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from headway.core.events import StepDone
from headway.core.messages import TokenScores
from headway.core.plans import StepPlan
from headway.core.units import Ns
from headway.engines.llm.batch import StepInputs
from headway.engines.llm.device import Array
from headway.engines.llm.leases import Lease


class Launched(msgspec.Struct, frozen=True, gc=False):
    """When a launch began, and whether rows were decoding by then."""

    at_ns: Ns
    was_runnable: bool


class OpenStep(msgspec.Struct):
    """A step that is queued. `tokens` waits for its results, which belong at `positions` of their sequences."""

    plan: StepPlan
    inputs: StepInputs
    positions: npt.NDArray[np.int32]
    tenancy: npt.NDArray[np.int32]
    tokens: Callable[[], Array]
    scores: tuple[TokenScores | None, ...]
    launched: Launched
    queued_ns: Ns
    lease: Lease
    done: StepDone | None = None
