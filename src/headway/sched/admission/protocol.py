"""What an admission policy sees, returns and learns from."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

import msgspec
from msgspec.structs import replace

from headway.core.decisions import Candidate
from headway.core.decisions import Lessened as Lessened
from headway.core.effects import ErrorOut
from headway.core.errors import InvariantError
from headway.core.ids import ModelId, RequestId
from headway.core.reports import AdmissionFigures
from headway.core.request import DiffusionRequest, LlmRequest, Request
from headway.core.units import Ns


class Outlook(msgspec.Struct, frozen=True):
    """The replica that would decode the request, at the end of the request's prefill (A7b): not as it is now."""

    step_seconds: float = 0.0  # of a decode step with the request in the batch; 0: unknown
    room_seconds: float = 0.0  # from then until its KV fits
    kv_usage: float = 0.0  # share of the KV in use with it
    rows: int = 0  # sequences that decode beside it
    is_idle: bool = False  # nothing waits or runs there, or at the replica that prefills; or it said nothing yet


class Load(msgspec.Struct, frozen=True):
    """The front's own state, and the forecast for the best candidate, that admission may look at."""

    queued: int  # in the global queue, for the same model
    has_room: bool  # the best candidate would take the request now
    decode_seconds: float  # forecast from first to last token at the best candidate
    queue_seconds: float  # forecast wait in the global queue
    prefill_seconds: float = 0.0  # part of the best candidate's seconds that is the request's own prefill
    output_tokens: int = 1  # that it is expected to generate
    outlook: Outlook = Outlook()
    denoise_step_seconds: float = 0.0  # of one step of a picture or video there, alone


class Prediction(msgspec.Struct, frozen=True):
    """Seconds from the decision, as the forecast says before calibration. `grain`: what it cannot resolve."""

    ttft: float
    tpot: float
    e2e: float
    grain: float = 0.0


class Verdict(msgspec.Struct, frozen=True):
    """What happens to an arriving request.

    `left`: what `degrade` takes away, and what stays of it. `to`: where the edge submits it again (`transfer`, or
    `degrade` to a smaller model); the error is for an edge that cannot.
    """

    kind: Literal["admit", "queue", "reject", "degrade", "transfer"]
    reason: str
    error: ErrorOut | None = None
    prediction: Prediction | None = None
    is_shadow: bool = False  # it was to be refused, and runs so that the refusals can be judged
    asks_scale_out: bool = False
    left: tuple[tuple[Lessened, int | str], ...] = ()
    to: ModelId | None = None


class Considered(msgspec.Struct, frozen=True, gc=False):
    """A verdict was given and is carried out."""

    at_ns: Ns
    request: Request
    verdict: Verdict


class Began(msgspec.Struct, frozen=True, gc=False):
    """The first token of a request was streamed."""

    at_ns: Ns
    request: RequestId


Outcome = Literal["done", "late", "lost"]


class Over(msgspec.Struct, frozen=True, gc=False):
    """A request ended. `outcome`: `done`, `late` (a deadline ended it), or `lost` (a failure, or its client left)."""

    at_ns: Ns
    request: RequestId
    output_tokens: int
    outcome: Outcome


Heard = Considered | Began | Over


class AdmissionPolicy(Protocol):
    """Lets a request in, makes it wait, or refuses it."""

    needs: ClassVar[frozenset[str]]  # `outlook`: that of the load is foreseen for those who look at it only

    def decide(self, request: Request, candidates: Sequence[Candidate], load: Load, at_ns: Ns) -> Verdict:
        """Return the verdict. Writes nothing."""
        ...

    def observe(self, event: Heard) -> None:
        """Learn from what happened. The only method that may change policy state."""
        ...

    def figures(self) -> Sequence[AdmissionFigures]:
        """How well its predictions held, per model; nothing where it predicts nothing."""
        ...


def lessened(request: Request, left: Sequence[tuple[Lessened, int | str]]) -> Request:
    """Return the request with less. A picture of another model is guided as that model is made to be."""
    for what, value in left:
        match request, what, value:
            case LlmRequest(), "max_tokens", int():
                predicted = request.output_tokens_predicted
                request = replace(
                    request,
                    sampling=replace(request.sampling, max_tokens=value),
                    output_tokens_predicted=None if predicted is None else min(predicted, value),
                )
            case DiffusionRequest(), "steps", int():
                request = replace(request, steps=value)
            case DiffusionRequest(), "model", str():
                request = replace(request, model=ModelId(value), guidance_scale=0.0, passes=0)
            case _:
                raise InvariantError(f"request {request.id} cannot be given {what} = {value!r} instead")
    return request
