"""The event log of a simulation: one JSON line per turn of a node, byte-identical for the same seed (SPEC J6)."""

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from headway.core.effects import Effect
from headway.core.events import Event
from headway.core.ids import NodeId
from headway.core.ports import Node


class Turn(msgspec.Struct, frozen=True):
    """One event at a node and what it answered."""

    node: NodeId
    incarnation: int
    event: Event
    effects: list[Effect]


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Turn] = msgspec.json.Decoder(Turn)


class EventLog:
    """Keeps the lines in memory, in the order in which nodes were driven."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def write(self, turn: Turn) -> None:
        """Append one turn."""
        self.lines.append(_encoder.encode(turn))

    def digest(self) -> str:
        """Return a hash of the whole log."""
        digest = hashlib.sha256()
        for line in self.lines:
            digest.update(line)
            digest.update(b"\n")
        return digest.hexdigest()

    def turns(self) -> Iterator[Turn]:
        """Yield every turn."""
        return (_decoder.decode(line) for line in self.lines)

    def of(self, node: NodeId, incarnation: int = 1) -> list[Turn]:
        """Return the turns of one life of a node."""
        return [turn for turn in self.turns() if turn.node == node and turn.incarnation == incarnation]


def replay(node: Node, turns: Iterable[Turn]) -> Turn | None:
    """Feed a fresh node the recorded events; return the first turn whose effects differ, None when all are equal."""
    for turn in turns:
        effects = node.handle(turn.event)
        again = _encoder.encode(Turn(turn.node, turn.incarnation, turn.event, effects))
        if again != _encoder.encode(turn):
            return msgspec.structs.replace(turn, effects=effects)
    return None
