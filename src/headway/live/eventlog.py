"""The event log of one node: every (event, effects) pair, so that a run can be replayed to the effect.

Rule 1 of the ring makes this sufficient: a node's effects depend on its events and on nothing else.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from headway.core.effects import Effect
from headway.core.errors import HeadwayError
from headway.core.events import Event
from headway.core.ports import Node

_LENGTH_BYTES: Final = 4


class LogError(HeadwayError):
    """A log that cannot be read."""


class Entry(msgspec.Struct, frozen=True):
    """One turn of a node."""

    event: Event
    effects: list[Effect]


class Difference(msgspec.Struct, frozen=True):
    """A turn whose replay gave other effects."""

    turn: int
    event: Event
    recorded: list[Effect]
    replayed: list[Effect]


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


def open_log(folder: str | None, name: str) -> "EventLog | None":
    """The log of a node, where one is asked for."""
    return None if folder is None else EventLog(Path(folder) / f"{name}.events")


class EventLog:
    """Appends turns to a file."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")

    def write(self, event: Event, effects: list[Effect]) -> None:
        """Append one turn."""
        body = _encoder.encode(Entry(event, effects))
        self._file.write(len(body).to_bytes(_LENGTH_BYTES, "big"))
        self._file.write(body)

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> Iterator[Entry]:
    """The turns of a log. A last turn that was cut off by a crash is left out. Raises LogError."""
    with path.open("rb") as file:
        turn = 0
        while len(head := file.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
            body = file.read(int.from_bytes(head, "big"))
            if len(body) < int.from_bytes(head, "big"):
                return
            try:
                yield _decoder.decode(body)
            except msgspec.DecodeError as error:
                raise LogError(f"{path}: turn {turn} cannot be read: {error}") from error
            turn += 1


def replay(node: Node, path: Path) -> tuple[int, list[Difference]]:
    """Feed a fresh node the events of a log; return the number of turns and those whose effects differ."""
    differences: list[Difference] = []
    turns = 0
    for turns, entry in enumerate(read_log(path), start=1):
        # Through the encoder, so that only values count: a log cannot tell a list from a tuple of the same items.
        replayed = _decoder.decode(_encoder.encode(Entry(entry.event, node.handle(entry.event)))).effects
        if replayed != entry.effects:
            differences.append(Difference(turns - 1, entry.event, entry.effects, replayed))
    return turns, differences
