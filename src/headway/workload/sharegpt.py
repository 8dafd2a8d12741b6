"""ShareGPT: JSON of conversations without times, or JSON lines of lengths (and token ids) as LLMServingSim writes them.

A conversation is `{id, conversations: [{from, value}, ...]}`. What the assistant says before anybody asked is left out,
texts in a row of one side belong together, and a conversation without an answer is none. Texts are not tokenized: their
lengths are characters over `chars_per_token`. A line is `{input_toks, output_toks, arrival_time_ns}` or with
`arrival_time` in seconds, and may hold `input_tok_ids`.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.core.ids import RequestId
from headway.core.units import NS_PER_S, Ns
from headway.workload.arrivals import Arrivals
from headway.workload.mint import Mint, faster, scaled_times
from headway.workload.offered import Offered
from headway.workload.prompts import Prompt
from headway.workload.rows import BadLine, Row, checked, lines, ns_of
from headway.workload.sessions import Conversations, Turn
from headway.workload.spec import ShareGpt
from headway.workload.trace import nothing_left

FILE_BYTES: Final = 2 << 30
ASSISTANTS: Final = frozenset({"gpt", "chatgpt", "assistant", "bing", "bard"})


class Said(msgspec.Struct, frozen=True):
    """One text."""

    side: str = msgspec.field(name="from")
    value: str


class Conversation(msgspec.Struct, frozen=True):
    """One conversation of the file."""

    conversations: tuple[Said, ...] = ()


class LengthLine(msgspec.Struct, frozen=True):
    """One line of lengths."""

    input_toks: int
    output_toks: int
    arrival_time_ns: int | None = None
    arrival_time: float | None = None  # s
    input_tok_ids: tuple[int, ...] = ()


def rows(path: Path, is_timed: bool = True) -> Iterator[Row]:
    """Yield the requests of a file of JSON lines. `is_timed` False: its times are not looked at. Raises ConfigError."""
    return checked(_rows(path, is_timed), path)


def _rows(path: Path, is_timed: bool) -> Iterator[tuple[int, Row]]:
    decoder = msgspec.json.Decoder(LengthLine)
    for number, line in lines(path):
        try:
            item = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise BadLine(path, number, str(error)) from None
        at_ns = item.arrival_time_ns
        if at_ns is None and item.arrival_time is not None:
            at_ns = ns_of(path, number, item.arrival_time, NS_PER_S)
        if not is_timed:
            at_ns = 0
        if at_ns is None:
            raise BadLine(path, number, "neither arrival_time_ns nor arrival_time; set `arrivals` of the workload")
        ids = item.input_tok_ids
        if ids and len(ids) != item.input_toks:
            raise BadLine(path, number, f"{len(ids)} input_tok_ids for {item.input_toks} input_toks")
        if ids and not 0 <= min(ids) <= max(ids) < 1 << 32:
            raise BadLine(path, number, "input_tok_ids are outside 0 to 2**32 - 1")
        yield number, Row(at_ns, item.input_toks, item.output_toks, tokens=ids)


def conversations(path: Path, chars_per_token: float) -> Iterator[tuple[Turn, ...]]:
    """Yield the turns of each conversation of a JSON file, in tokens. Reads the file whole. Raises ConfigError."""
    try:
        size = path.stat().st_size
        if size > FILE_BYTES:
            raise ConfigError(f"trace {path}: {size} bytes are over {FILE_BYTES}; split it")
        found = msgspec.json.decode(path.read_bytes(), type=list[msgspec.Raw])
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"trace {path}: {error}; ShareGPT's file is one JSON list of conversations") from None
    decoder = msgspec.json.Decoder(Conversation)
    for place, raw in enumerate(found):
        try:
            turns = tuple(_turns(decoder.decode(raw), chars_per_token))
        except msgspec.DecodeError as error:
            raise ConfigError(f"trace {path}, conversation {place}: {error}") from None
        if turns:
            yield turns


def _turns(conversation: Conversation, chars_per_token: float) -> Iterator[Turn]:
    asked = answered = 0
    for said in conversation.conversations:
        if said.side in ASSISTANTS:
            answered += len(said.value)
            continue
        if asked and answered:
            yield Turn(_tokens(asked, chars_per_token), _tokens(answered, chars_per_token))
            asked = 0
        answered = 0
        asked += len(said.value)
    if asked and answered:
        yield Turn(_tokens(asked, chars_per_token), _tokens(answered, chars_per_token))


def _tokens(chars: int, chars_per_token: float) -> int:
    return max(1, math.ceil(chars / chars_per_token))


class ShareGptSource:
    """Conversations that begin by an arrival process and go on when their reader has thought."""

    def __init__(self, spec: ShareGpt, arrivals: Arrivals, mint: Mint, path: Path) -> None:
        self._spec, self._arrivals, self._mint, self._path = spec, arrivals, mint, path
        self._talks = Conversations(mint, spec.think, spec.context_max)
        self._rest: dict[RequestId, deque[Turn]] = {}  # of conversations that wait for an answer

    def first(self) -> Iterator[Offered]:
        """The first turn of each conversation."""
        spec, mint = self._spec, self._mint
        until = None if spec.count is None else spec.skip + spec.count
        chosen = islice(enumerate(conversations(self._path, spec.chars_per_token)), spec.skip, until)
        arrivals = faster(self._arrivals, spec.rate_scale)
        at = scaled_times(spec, arrivals, mint.seed, mint.draw_key("arrival"))
        place = None
        for (place, turns), at_ns in zip(chosen, at, strict=False):
            rest = deque(turns)
            offered = self._talks.begin(place, at_ns, Prompt(), rest.popleft())
            if offered is not None:
                self._rest[offered.request.id] = rest
                yield offered
        if place is None:
            raise nothing_left(spec, mint.name)

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:
        """The next turn; None when the conversation is over."""
        rest, ended = self._rest.pop(request), self._talks.ended(request, answer)
        if ended is None or not rest:
            return None
        offered = self._talks.go_on(*ended, ended_ns, rest.popleft())
        if offered is not None:
            self._rest[offered.request.id] = rest
        return offered
