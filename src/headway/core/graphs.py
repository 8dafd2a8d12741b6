"""Graph modes: how each kind of step is launched, and what is left of a mode where not all of it can be captured."""

from typing import Final, Literal

import msgspec

# Names and meanings as in vLLM's `cudagraph_mode`.
GraphMode = Literal["none", "piecewise", "full", "full_decode_only", "full_and_piecewise"]
# full: the whole step is one captured graph; piecewise: what lies between attentions is, and attention is not.
StepGraph = Literal["none", "piecewise", "full"]
# What an engine can capture with its attention, each with what the one before can: nothing; the pieces between
# attentions; whole steps that only decode; whole steps of any kind.
Captures = Literal["nothing", "pieces", "decodes", "everything"]


class StepGraphs(msgspec.Struct, frozen=True):
    """How a step that only decodes is launched, and how one with prefill is."""

    decode: StepGraph
    mixed: StepGraph


_OF_MODE: Final[dict[GraphMode, StepGraphs]] = {
    "none": StepGraphs("none", "none"),
    "piecewise": StepGraphs("piecewise", "piecewise"),
    "full": StepGraphs("full", "full"),
    "full_decode_only": StepGraphs("full", "none"),
    "full_and_piecewise": StepGraphs("full", "piecewise"),
}


def step_graphs(mode: GraphMode) -> StepGraphs:
    """What the mode means for each kind of step."""
    return _OF_MODE[mode]


def possible(mode: GraphMode, captures: Captures) -> GraphMode:
    """The mode itself, or what an engine that `captures` less runs in its place.

    As vLLM downgrades: attention that cannot be captured with prefill leaves `full` to decodes and the pieces to the
    other steps; attention that cannot be captured at all leaves the pieces to every step.
    """
    if captures == "nothing" or mode == "none":
        return "none"
    if captures == "pieces":
        return "piecewise"
    return "full_and_piecewise" if mode == "full" and captures == "decodes" else mode
