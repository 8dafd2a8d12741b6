"""Qwen-Bailian's trace: JSON lines of {chat_id, parent_chat_id, timestamp, input_length, output_length, type, turn,
hash_ids}; times in seconds, a hash id stands for 16 tokens and everything before them, parent -1 begins a chat."""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from headway.core.units import NS_PER_S
from headway.workload.rows import BadLine, Row, checked, lines, ns_of

BLOCK_TOKENS: Final = 16
CHATS_KEPT: Final = 1_000_000  # of which the beginning is known, the latest; a follow-up of another begins a session


class QwenLine(msgspec.Struct, frozen=True):
    """One line of the trace."""

    chat_id: int
    parent_chat_id: int
    timestamp: float  # s
    input_length: int
    output_length: int
    type: str
    turn: int
    hash_ids: tuple[int, ...]


def rows(path: Path, types: Collection[str] = ()) -> Iterator[Row]:
    """Yield the requests of a file, of some types; empty: of all. Raises ConfigError."""
    return checked(_rows(path, types), path)


def _rows(path: Path, types: Collection[str]) -> Iterator[tuple[int, Row]]:
    decoder = msgspec.json.Decoder(QwenLine)
    roots: OrderedDict[int, int] = OrderedDict()
    for number, line in lines(path):
        try:
            item = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BadLine(path, number, str(error)) from None
        root = roots.get(item.parent_chat_id, item.chat_id)
        roots[item.chat_id] = root
        if len(roots) > CHATS_KEPT:
            roots.popitem(last=False)
        if types and item.type not in types:
            continue
        yield (
            number,
            Row(
                ns_of(path, number, item.timestamp, NS_PER_S),
                item.input_length,
                item.output_length,
                item.hash_ids,
                BLOCK_TOKENS,
                session=str(root),
            ),
        )
