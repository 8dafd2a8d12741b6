"""What each attention of the LLM engine can capture as graphs; without torch, so that a configuration can ask."""

from typing import Final, Literal

from headway.core.graphs import Captures

# Decodes are one launch of fixed shape per span of blocks. Chunks are one launch each, of shapes that only the host
# knows, so a step with chunks can be captured but for its attention.
FUSED_ATTENTION: Final[Captures] = "decodes"
# A CPU has no graphs: a launch is a call.
HOST_ATTENTION: Final[Captures] = "nothing"


def captures_on(device: Literal["cpu", "cuda"]) -> Captures:
    """What the attention that serves on `device` can capture."""
    return FUSED_ATTENTION if device == "cuda" else HOST_ATTENTION
