"""Answers as OpenAI's JSON: whole objects, and stream events from a pre-rendered frame."""

from collections.abc import Sequence
from typing import Final

import msgspec

from headway.adapters.gateway.choice import Choice, Piece, TokenLogprob
from headway.adapters.gateway.errors import error_body
from headway.adapters.gateway.prepare import Answer
from headway.core.effects import ErrorOut

DONE: Final = b"data: [DONE]\n\n"
Degraded = dict[str, int | str]
PING: Final = b": ping\n\n"

_encode: Final = msgspec.json.Encoder().encode


class PromptDetails(msgspec.Struct):
    """`cached_tokens`: prompt tokens found in the prefix cache; null until it is known."""

    cached_tokens: int | None


class CompletionDetails(msgspec.Struct):
    """No reasoning model is served, so reasoning tokens are a measured zero."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """OpenAI's usage object. Generated tokens count the stop token."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of a chat choice."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """`logprobs` of a text choice: parallel lists."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AnswerMessage(msgspec.Struct):
    """The generated message."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, kw_only=True):
    """A choice of a chat completion."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class TextChoice(msgspec.Struct, kw_only=True):
    """A choice of a text completion."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The whole answer of `/v1/chat/completions`."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: None = None
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    degraded: Degraded | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(msgspec.Struct, kw_only=True):
    """The whole answer of `/v1/completions`."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    system_fingerprint: None = None
    degraded: Degraded | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, omit_defaults=True):
    """What a chat stream adds."""

    role: str | msgspec.UnsetType = msgspec.UNSET
    content: str | msgspec.UnsetType = msgspec.UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """One choice in a stream event; `delta` for chat, `text` for text."""

    index: int
    delta: Delta | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType = msgspec.UNSET
    logprobs: ChatLogprobs | TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | msgspec.UnsetType | None = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


def usage_of(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None) -> Usage:
    """Return the usage object."""
    total = prompt_tokens + completion_tokens
    return Usage(prompt_tokens, completion_tokens, total, PromptDetails(cached_tokens), CompletionDetails())


def text_logprobs(entries: Sequence[TokenLogprob], offset: int) -> TextLogprobs:
    """Return the parallel lists of a text completion; `offset` is where the first token's text begins."""
    out = TextLogprobs([], [], [], [])
    for entry in entries:
        out.tokens.append(entry.token)
        out.token_logprobs.append(entry.logprob)
        # OpenAI's list has the sampled token in any case, so up to one more than asked for.
        best = {top.token: top.logprob for top in entry.top_logprobs}
        out.top_logprobs.append(best | {entry.token: entry.logprob})
        out.text_offset.append(offset)
        offset += len(entry.token)
    return out


def with_degraded(events: bytes, degraded: Degraded) -> bytes:
    """Say in the first of these events what was taken away from the request."""
    head, end, rest = events.partition(b"}\n\n")  # an event is one line: text has its line ends escaped
    return head + b',"degraded":' + _encode(degraded) + end + rest


def error_event(error: ErrorOut) -> bytes:
    """Return the event that ends a failed stream; no `[DONE]` follows it."""
    return b"data: " + error_body(error) + b"\n\n"


class ChunkFrame:
    """Renders the events of one stream. What repeats in every event is rendered once."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        kind = b"chat.completion.chunk" if answer.chat else b"text_completion"
        self._head = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"system_fingerprint":null,"choices":[' % (
            _encode(answer.id),
            kind,
            answer.created,
            _encode(answer.model),
        )
        self._tail = b'],"usage":null}\n\n' if answer.include_usage else b"]}\n\n"
        self._plain = answer.logprobs is None and not answer.return_token_ids and not answer.continuous_usage

    def role(self, index: int, prompt_tokens: Sequence[int], usage: Usage | None) -> bytes:
        """Return the first event of a chat choice."""
        ids = list(prompt_tokens) if self._answer.return_token_ids else msgspec.UNSET
        choice = ChunkChoice(index=index, delta=Delta(role="assistant", content=""), prompt_token_ids=ids)
        return self._event(choice, usage)

    def text(self, index: int, piece: Piece, offset: int, usage: Usage | None) -> bytes:
        """Return the event for a piece; `offset` is the length of the choice's text before it."""
        if self._plain:
            text = _encode(piece.text)
            middle = b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'
            if not self._answer.chat:
                middle = b'{"index":%d,"text":%b,"logprobs":null,"finish_reason":null}'
            return self._head + middle % (index, text) + self._tail
        return self._event(self._choice(index, piece, offset), usage)

    def echo(self, index: int, text: str, prompt_tokens: Sequence[int], usage: Usage | None) -> bytes:
        """Return the event that repeats the prompt of a text completion."""
        ids = list(prompt_tokens) if self._answer.return_token_ids else msgspec.UNSET
        return self._event(ChunkChoice(index=index, text=text, prompt_token_ids=ids), usage)

    def finish(self, index: int, choice: Choice, usage: Usage | None) -> bytes:
        """Return the event with the finish reason."""
        end = ChunkChoice(index=index, finish_reason=choice.finish_reason, stop_reason=choice.stop_reason)
        if self._answer.chat:
            end.delta = Delta()
        else:
            end.text = ""
        return self._event(end, usage)

    def usage(self, usage: Usage) -> bytes:
        """Return the last event before `[DONE]`: no choices, the usage."""
        return self._head + b'],"usage":' + _encode(usage) + b"}\n\n"

    def _choice(self, index: int, piece: Piece, offset: int) -> ChunkChoice:
        choice = ChunkChoice(index=index)
        if self._answer.chat:
            choice.delta = Delta(content=piece.text)
        else:
            choice.text = piece.text
        if self._answer.logprobs is not None:
            chat = ChatLogprobs(piece.logprobs) if self._answer.chat else None
            choice.logprobs = chat or text_logprobs(piece.logprobs, offset)
        if self._answer.return_token_ids:
            choice.token_ids = piece.tokens
        return choice

    def _event(self, choice: ChunkChoice, usage: Usage | None) -> bytes:
        if usage is None:
            return self._head + _encode(choice) + self._tail
        return self._head + _encode(choice) + b'],"usage":' + _encode(usage) + b"}\n\n"
