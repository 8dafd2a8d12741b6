"""What all ranks of a group do in a step, as a pure function of everyone's proposal (SPEC D2)."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from headway.core.events import Proposal
from headway.core.ids import NodeId

Kind = Literal["idle", "decode", "prefill", "mixed"]
IDLE = Proposal("idle", 0, 0)


class Agreement(msgspec.Struct, frozen=True):
    """The same at every rank, without a leader."""

    kind: Kind
    padded: int  # rows or tokens that every rank computes, dummies included
    longest_prefill: int
    can_overlap: bool
    mode: str
    dummies: tuple[NodeId, ...]  # ranks without work: they join the collectives with a dummy batch


def agree(proposals: Mapping[NodeId, Proposal]) -> Agreement:
    """Combine proposals. Idle ranks follow: they neither forbid overlap nor have a say in the mode."""
    busy = {node: proposal for node, proposal in sorted(proposals.items()) if proposal.kind != "idle"}
    if not busy:
        return Agreement("idle", 0, 0, True, "none", ())
    kinds = {proposal.kind for proposal in busy.values()}
    modes = {proposal.mode for proposal in busy.values()}
    kind: Kind = "mixed"
    if kinds == {"decode"}:
        kind = "decode"
    elif kinds == {"prefill"}:
        kind = "prefill"
    return Agreement(
        kind=kind,
        padded=max(proposal.padded for proposal in busy.values()),
        longest_prefill=max(proposal.longest_prefill for proposal in busy.values()),
        can_overlap=all(proposal.can_overlap for proposal in busy.values()),
        mode=modes.pop() if len(modes) == 1 else "none",
        dummies=tuple(node for node in sorted(proposals) if node not in busy),
    )
