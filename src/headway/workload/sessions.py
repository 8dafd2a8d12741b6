"""Conversations: each next prompt is the one before, its answer and new text, so that prefix caches really hit."""

from collections.abc import Iterator, Sequence

import msgspec

from headway.core.ids import RequestId
from headway.core.units import Ns
from headway.workload.mint import Asked, Mint, faster, scaled_times, think_ns
from headway.workload.offered import ANSWER_TOKEN, Offered
from headway.workload.prompts import Heads, Prompt, Run, extend, run_value, runs_of
from headway.workload.spec import Sessions, Think


class Turn(msgspec.Struct, frozen=True):
    """One turn that is drawn already: new tokens of its prompt, and of its answer."""

    new_tokens: int
    output_tokens: int


class Waiting(msgspec.Struct, frozen=True):
    """A session whose turn is with the server."""

    session: int
    turn: int
    prompt: Prompt
    output_tokens: int


class Conversations:
    """The turns of sessions. Holds those that wait for an answer, no others."""

    def __init__(self, mint: Mint, think: Think, context_max: int) -> None:
        self._mint, self._think, self._context_max = mint, think, context_max
        self._open: dict[RequestId, Waiting] = {}

    def begin(self, session: int, at_ns: Ns, system: Prompt, turn: Turn) -> Offered | None:
        """The first turn of a session; None when it is too long for the context."""
        return self._send(Waiting(session, 0, system, 0), at_ns, (), turn)

    def ended(self, request: RequestId, answer: Sequence[int] | None) -> tuple[Waiting, list[Run]] | None:
        """Take a session out that waited; None when it got nothing and ends."""
        waited = self._open.pop(request)
        got = [Run(ANSWER_TOKEN, waited.output_tokens)] if answer is None else runs_of(answer)
        return (waited, got) if got else None

    def go_on(self, waited: Waiting, got: Sequence[Run], ended_ns: Ns, turn: Turn) -> Offered | None:
        """The turn after an answer; None when it is too long for the context."""
        mint = self._mint
        key = mint.draw_key(f"think/{waited.session}/{waited.turn}")
        at_ns = ended_ns + think_ns(self._think, mint.spec.time_scale, mint.seed, key)
        return self._send(msgspec.structs.replace(waited, turn=waited.turn + 1), at_ns, got, turn)

    def _send(self, state: Waiting, at_ns: Ns, got: Sequence[Run], turn: Turn) -> Offered | None:
        mint, key = self._mint, f"{state.session}.{state.turn}"
        tokens = len(state.prompt.tokens) + sum(run.count for run in got) + turn.new_tokens
        limit = min(turn.output_tokens, mint.spec.max_tokens) if mint.spec.tells_length else mint.spec.max_tokens
        if tokens + limit > self._context_max:
            return None
        new = Run(run_value(mint.seed, mint.draw_key(f"user/{key}")), turn.new_tokens)
        prompt = extend(state.prompt, (*got, new), mint.root, mint.block_tokens)
        session = f"session-{mint.name}-{state.session}"
        offered = mint.offer(Asked(key, at_ns, prompt, turn.output_tokens, session))
        output = offered.output_tokens
        self._open[offered.request.id] = msgspec.structs.replace(state, prompt=prompt, output_tokens=output)
        return offered


class SessionsSource:
    """Sessions of an arrival process, with drawn turns."""

    def __init__(self, spec: Sessions, mint: Mint) -> None:
        self._spec, self._mint = spec, mint
        self._heads = Heads(mint.seed, mint.name, spec.families, spec.family_skew)
        self._talks = Conversations(mint, spec.think, spec.context_max)

    def first(self) -> Iterator[Offered]:
        """The first turn of each session."""
        spec, mint = self._spec, self._mint
        arrivals = faster(spec.arrivals, spec.rate_scale)
        at = scaled_times(spec, arrivals, mint.seed, mint.draw_key("arrival"))
        for session, at_ns in zip(range(spec.count), at, strict=False):
            family = self._heads.family(str(session))
            system = self._heads.head(family, spec.system_tokens, mint.root, mint.block_tokens)
            offered = self._talks.begin(session, at_ns, system, self._turn(session, 0))
            if offered is not None:
                yield offered

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:
        """The next turn; None when the session is over."""
        ended = self._talks.ended(request, answer)
        if ended is None:
            return None
        waited, got = ended
        turns = self._spec.turns.draw(self._mint.seed, self._mint.draw_key(f"turns/{waited.session}"), 0)
        if waited.turn + 1 >= turns:
            return None
        return self._talks.go_on(waited, got, ended_ns, self._turn(waited.session, waited.turn + 1))

    def _turn(self, session: int, turn: int) -> Turn:
        spec, mint, key = self._spec, self._mint, f"{session}/{turn}"
        new = spec.user.draw(mint.seed, mint.draw_key(f"user-tokens/{key}"), 0)
        return Turn(new, spec.output.draw(mint.seed, mint.draw_key(f"output/{key}"), 0))
