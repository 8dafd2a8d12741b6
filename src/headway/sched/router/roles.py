"""Which replicas can run which request."""

from typing import assert_never

from headway.core.request import DiffusionRequest, LlmRequest, Request, TextRequest


def role_of(request: Request) -> str:
    """The role of the replicas that can run a request."""
    match request:
        case LlmRequest():
            return "llm"
        case TextRequest():
            return "upstream"
        case DiffusionRequest():
            return "diffusion"
        case _:
            assert_never(request)
