"""The two ways an answer leaves the gateway: whole, or as server-sent events."""

from collections.abc import Sequence

import msgspec

from headway.adapters.gateway.choice import Piece
from headway.adapters.gateway.exchange import Exchange
from headway.adapters.gateway.prepare import Prepared
from headway.adapters.gateway.prompts import Prompt
from headway.adapters.gateway.render import (
    DONE,
    PING,
    AnswerMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    ChunkFrame,
    Degraded,
    TextChoice,
    TextCompletion,
    Usage,
    error_event,
    text_logprobs,
    usage_of,
    with_degraded,
)
from headway.adapters.gateway.session import ChoiceRun
from headway.core.effects import ErrorOut


def total_usage(prepared: Prepared, runs: Sequence[ChoiceRun]) -> Usage:
    """Return the usage of all choices. A prompt counts once; its cached tokens are those of its first choice."""
    prompt = sum(len(item.tokens) for item in prepared.prompts)
    ends = [run.end for run in runs[:: prepared.answer.n]]
    cached = sum(end.cached_tokens for end in ends if end is not None)
    known = all(end is not None for end in ends)
    return usage_of(prompt, sum(run.choice.tokens for run in runs), cached if known else None)


def prompt_of(prepared: Prepared, run: ChoiceRun) -> Prompt:
    """Return the prompt that a choice belongs to."""
    return prepared.prompts[run.index // prepared.answer.n]


def echoed(prepared: Prepared, run: ChoiceRun) -> str:
    """Return the prompt's text where the answer repeats it."""
    if not prepared.answer.echo:
        return ""
    prompt = prompt_of(prepared, run)
    return prepared.tokenizer.decode(prompt.tokens) if prompt.text is None else prompt.text


def degraded_of(runs: Sequence[ChoiceRun]) -> Degraded:
    """Return what was taken away from the choices; of a limit that differs between them the least."""
    merged: Degraded = {}
    for run in runs:
        for name, left in run.degraded.items():
            known = merged.get(name)
            merged[name] = min(known, left) if isinstance(known, int) and isinstance(left, int) else left
    return merged


class WholeOutput:
    """One JSON object at the end."""

    pings = False

    def __init__(self, exchange: Exchange, prepared: Prepared, runs: Sequence[ChoiceRun]) -> None:
        self._exchange, self._prepared, self._runs = exchange, prepared, runs
        self._pieces: list[list[Piece]] = [[] for _ in runs]

    is_prompt = True

    def take(self, run: ChoiceRun, piece: Piece) -> None:
        """Keep the piece."""
        self._pieces[run.index].append(piece)

    async def took(self, run: ChoiceRun, piece: Piece) -> None:
        """Keep the piece."""
        self.take(run, piece)

    async def ended(self, run: ChoiceRun, piece: Piece) -> None:
        """Keep the last piece."""
        self._pieces[run.index].append(piece)

    async def ping(self) -> None:
        """A whole answer has nothing to say before its end."""

    async def conclude(self, error: ErrorOut | None) -> None:
        """Respond."""
        if error is not None:
            await self._exchange.fail(error)
            return
        whole = self._chat_completion() if self._prepared.answer.chat else self._text_completion()
        await self._exchange.respond(200, msgspec.json.encode(whole))

    def _chat_completion(self) -> ChatCompletion:
        answer = self._prepared.answer
        return ChatCompletion(
            id=answer.id,
            created=answer.created,
            model=answer.model,
            choices=[self._chat(run) for run in self._runs],
            usage=total_usage(self._prepared, self._runs),
            degraded=degraded_of(self._runs) or msgspec.UNSET,
            prompt_token_ids=list(self._prepared.prompts[0].tokens) if answer.return_token_ids else msgspec.UNSET,
        )

    def _text_completion(self) -> TextCompletion:
        answer = self._prepared.answer
        return TextCompletion(
            id=answer.id,
            created=answer.created,
            model=answer.model,
            choices=[self._text(run) for run in self._runs],
            usage=total_usage(self._prepared, self._runs),
            degraded=degraded_of(self._runs) or msgspec.UNSET,
        )

    def _joined(self, run: ChoiceRun) -> Piece:
        pieces = self._pieces[run.index]
        return Piece(
            "".join(piece.text for piece in pieces),
            [token for piece in pieces for token in piece.tokens],
            [entry for piece in pieces for entry in piece.logprobs],
        )

    def _chat(self, run: ChoiceRun) -> ChatChoice:
        answer, piece = self._prepared.answer, self._joined(run)
        return ChatChoice(
            index=run.index,
            message=AnswerMessage(piece.text),
            logprobs=None if answer.logprobs is None else ChatLogprobs(piece.logprobs),
            finish_reason=run.choice.finish_reason,
            stop_reason=run.choice.stop_reason,
            token_ids=piece.tokens if answer.return_token_ids else msgspec.UNSET,
        )

    def _text(self, run: ChoiceRun) -> TextChoice:
        answer, piece, echo = self._prepared.answer, self._joined(run), echoed(self._prepared, run)
        choice = TextChoice(
            index=run.index,
            text=echo + piece.text,
            logprobs=None if answer.logprobs is None else text_logprobs(piece.logprobs, len(echo)),
            finish_reason=run.choice.finish_reason,
            stop_reason=run.choice.stop_reason,
        )
        if answer.return_token_ids:
            choice.token_ids = piece.tokens
            choice.prompt_token_ids = list(prompt_of(self._prepared, run).tokens)
        return choice


class StreamOutput:
    """Server-sent events: per choice one with the role, one per delivery, one with the finish reason."""

    pings = True

    def __init__(self, exchange: Exchange, prepared: Prepared, runs: Sequence[ChoiceRun]) -> None:
        self._exchange, self._prepared, self._runs = exchange, prepared, runs
        self._frame = ChunkFrame(prepared.answer)
        self._begun = [False] * len(runs)
        self._held = [Piece() for _ in runs]  # below `stream_interval`
        self._offset = [0] * len(runs)  # length of the text before the held piece

    @property
    def is_prompt(self) -> bool:
        """The client takes what comes."""
        return self._exchange.is_prompt

    def take(self, run: ChoiceRun, piece: Piece) -> None:
        """Write an event, unless more tokens are awaited for it."""
        if events := self._events(run, piece):
            self._exchange.write_now(events)

    async def took(self, run: ChoiceRun, piece: Piece) -> None:
        """Write an event, unless more tokens are awaited for it."""
        if events := self._events(run, piece):
            await self._exchange.write(events)

    def _events(self, run: ChoiceRun, piece: Piece) -> bytes:
        held, first = self._held[run.index], not self._begun[run.index]
        held.add(piece)
        if first or len(held.tokens) >= self._prepared.answer.stream_interval:
            return self._said(run, self._opening(run) + self._text(run))
        return b""

    async def ended(self, run: ChoiceRun, piece: Piece) -> None:
        """Write what is held and the finish reason."""
        held = self._held[run.index]
        held.add(piece)
        events = self._opening(run)
        if held.text or held.tokens:
            events += self._text(run)
        await self._exchange.write(self._said(run, events + self._frame.finish(run.index, run.choice, self._usage())))

    def _said(self, run: ChoiceRun, events: bytes) -> bytes:
        """With what was taken away from the request, once."""
        if run.degraded:
            events, run.degraded = with_degraded(events, run.degraded), {}
        return events

    async def ping(self) -> None:
        """Write a comment, which clients skip."""
        await self._exchange.write(PING)

    async def conclude(self, error: ErrorOut | None) -> None:
        """End with usage and `[DONE]`, or with the error and nothing after it; as a status if nothing was sent."""
        if error is None:
            usage = b""
            if self._prepared.answer.include_usage:
                usage = self._frame.usage(total_usage(self._prepared, self._runs))
            await self._exchange.finish(usage + DONE)
        elif self._exchange.started:
            await self._exchange.finish(error_event(error))
        else:
            await self._exchange.fail(error)

    def _opening(self, run: ChoiceRun) -> bytes:
        if self._begun[run.index]:
            return b""
        self._begun[run.index] = True
        answer, tokens = self._prepared.answer, prompt_of(self._prepared, run).tokens
        if answer.chat:
            return self._frame.role(run.index, tokens, self._usage())
        echo = echoed(self._prepared, run)
        self._offset[run.index] = len(echo)
        return self._frame.echo(run.index, echo, tokens, self._usage()) if echo or answer.return_token_ids else b""

    def _text(self, run: ChoiceRun) -> bytes:
        piece, self._held[run.index] = self._held[run.index], Piece()
        event = self._frame.text(run.index, piece, self._offset[run.index], self._usage())
        self._offset[run.index] += sum(len(entry.token) for entry in piece.logprobs)
        return event

    def _usage(self) -> Usage | None:
        return total_usage(self._prepared, self._runs) if self._prepared.answer.continuous_usage else None
