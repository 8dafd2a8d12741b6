"""One choice of an answer: tokens in, certain text and log-probabilities out."""

from collections.abc import Callable
from typing import Final

import msgspec

from headway.adapters.gateway.prepare import Answer
from headway.adapters.gateway.stops import StopCutter
from headway.adapters.tokenizer import Tokenizer
from headway.core.effects import Deliver, End
from headway.core.messages import TokenScores
from headway.core.request import FinishReason

LOGPROB_MIN: Final = -9999.0  # JSON has no infinity; OpenAI's own stand-in for an impossible token


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative of a token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """A generated token. `token` is the text that it added, so that the tokens of an answer spell it."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Piece(msgspec.Struct):
    """What one delivery added: text that is certain, the tokens taken, their log-probabilities if asked."""

    text: str = ""
    tokens: list[int] = []  # msgspec copies the default
    logprobs: list[TokenLogprob] = []

    def add(self, other: "Piece") -> None:
        """Append what came after."""
        self.text += other.text
        self.tokens += other.tokens
        self.logprobs += other.logprobs


class Choice:
    """State of one sequence's text."""

    def __init__(self, answer: Answer, tokenizer: Tokenizer, on_stop: Callable[[int], None]) -> None:
        """`on_stop(index)` is called once when a stop string ends the text inside token `index`."""
        self._answer, self._tokenizer, self._on_stop = answer, tokenizer, on_stop
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=answer.skip_special)
        self._cutter = StopCutter(answer.stops, include=answer.include_stop) if answer.stops else None
        self._pending: tuple[int, TokenScores | None] | None = None
        self.tokens = 0  # completion tokens, the stop token included
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self.stopped = False  # by a stop string
        self._over = False
        self._unspelled: list[TokenLogprob] = []  # tokens within a character that is not complete

    def push(self, deliver: Deliver) -> Piece:
        """Take delivered tokens. Those after a stop string are dropped."""
        piece = Piece()
        scores = deliver.scores
        for row, token in enumerate(deliver.tokens):
            self._settle(piece)
            if self.stopped:
                break
            self.tokens += 1
            score = scores[row] if row < len(scores) else None
            if token in self._answer.stop_tokens:
                # Only what follows tells whether it ended the sequence: then it is no text.
                self._pending = (token, score)
            else:
                self._take(piece, token, score, self.tokens)
        return piece

    def end(self, end: End) -> Piece:
        """Take the end of the sequence; sets `finish_reason` unless it ended with an error."""
        piece = Piece()
        self._over = True
        last = None
        if end.reason is FinishReason.STOP and not self.stopped:
            last, self._pending = self._pending, None
        self._settle(piece)
        if not self.stopped:
            self._finish_text(piece, last)
        self._spell_rest(piece, "")
        if self.stopped or end.reason is FinishReason.STOP:
            self.finish_reason = "stop"
        elif end.reason is FinishReason.LENGTH:
            self.finish_reason = "length"
        return piece

    def _finish_text(self, piece: Piece, last: tuple[int, TokenScores | None] | None) -> None:
        """Let out what is held. `last` is the stop token, whose own text counts only when asked for."""
        token, score = last or (0, None)
        rest = self._detokenizer.push(token) if last is not None and self._answer.include_stop else ""
        rest += self._detokenizer.flush()
        piece.text += rest if self._cutter is None else self._cut(rest, self.tokens) + self._cutter.flush()
        if last is None:
            self._spell_rest(piece, rest)
            return
        self._spell_rest(piece, "" if self._answer.include_stop else rest)
        if self.stop_reason is None:
            self.stop_reason = token
        self._report(piece, token, self._tokenizer.spell(token), score)

    def _settle(self, piece: Piece) -> None:
        """The pending stop token did not end the sequence (`min_tokens`): it is text like any other."""
        if self._pending is not None:
            token, score = self._pending
            self._pending = None
            self._take(piece, token, score, self.tokens)

    def _take(self, piece: Piece, token: int, score: TokenScores | None, number: int) -> None:
        text = self._detokenizer.push(token)
        self._report(piece, token, text, score)
        piece.text += text if self._cutter is None else self._cut(text, number)

    def _cut(self, text: str, number: int) -> str:
        """Pass text through the stop strings; none counts within the first `min_tokens` tokens."""
        assert self._cutter is not None
        if number <= self._answer.min_tokens:
            return text
        out = self._cutter.feed(text)
        if self._cutter.found is not None:
            self.stopped, self.stop_reason = True, self._cutter.found
            if not self._over:
                self._on_stop(number - 1)
        return out

    def _report(self, piece: Piece, token: int, text: str, score: TokenScores | None) -> None:
        piece.tokens.append(token)
        if self._answer.logprobs is None or score is None:
            return
        best = zip(score.top_ids, score.top_logprobs, strict=True)
        top = [
            TopLogprob(self._tokenizer.spell(t), max(p, LOGPROB_MIN), list(self._tokenizer.spell_bytes(t)))
            for t, p in list(best)[: self._answer.logprobs]
        ]
        raw = list(self._tokenizer.spell_bytes(token))
        self._unspelled.append(TokenLogprob(text, max(score.logprob, LOGPROB_MIN), raw, top))
        if not self._detokenizer.holds:
            self._spell_rest(piece, "")

    def _spell_rest(self, piece: Piece, rest: str) -> None:
        """Let the waiting tokens out; the last of them spells `rest`."""
        if rest and self._unspelled:
            last = self._unspelled[-1]
            self._unspelled[-1] = msgspec.structs.replace(last, token=last.token + rest)
        piece.logprobs += self._unspelled
        self._unspelled = []
