"""What the relay reads of a client's JSON; the upstream validates the rest, and gets it byte for byte."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headway.adapters.gateway.refusals import refusal
from headway.adapters.gateway.schema import Degradation
from headway.core.errors import RequestError

Small = Annotated[int, Meta(ge=-(2**31), lt=2**31)]


class RelayBody(msgspec.Struct, frozen=True, gc=False):
    """Fields that decide something here. Unknown ones pass through."""

    model: str
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    stream: bool | None = None
    max_tokens: Small | None = None
    max_completion_tokens: Small | None = None
    n: Small | None = None
    priority: Small | None = None
    temperature: float | None = None
    seed: int | None = None
    session_id: Annotated[str, Meta(max_length=256)] | None = None  # remembered by routing policies
    cache_salt: str | None = None
    ignore_eos: bool | None = None
    allow_degrade: Annotated[list[Degradation], Meta(max_length=8)] | None = None


_DECODER: Final = msgspec.json.Decoder(RelayBody)


class _Named(msgspec.Struct, frozen=True, gc=False):
    model: str


_NAME_DECODER: Final = msgspec.json.Decoder(_Named)


def model_named(raw: bytes) -> str | None:
    """Return the `model` of a body; None when it has none that could be told. Costs one pass over the text."""
    try:
        return _NAME_DECODER.decode(raw).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_body(raw: bytes) -> RelayBody | None:
    """Decode a body; None when it is not of the shape that is relayed (our own routes say why)."""
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def wrong_shape(raw: bytes) -> RequestError:
    """What is wrong with a body whose model is relayed, and whose other fields cannot be read."""
    try:
        _DECODER.decode(raw)
    except msgspec.ValidationError as error:
        return refusal(str(error), RelayBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return RequestError(f"The body is invalid: {error}", code="invalid_value")
    raise AssertionError("the body is fine")
