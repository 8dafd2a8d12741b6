"""Fits `cost.diffusion`'s formula to what a warm-up has measured (SPEC F2)."""

from collections.abc import Sequence

import msgspec

from headway.core.artifacts import StagePeaks
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DenoiseShape
from headway.cost.diffusion import forwards_of, tokens_of
from headway.cost.nonnegative import solve_nonnegative


class Measured(msgspec.Struct, frozen=True):
    """One request that was run: seconds do not matter, only what they were spent on."""

    shape: DenoiseShape
    pictures: int
    text_ns: int
    step_ns: float
    decode_ns: int
    peaks: StagePeaks | None = None  # of a run that was counted; None: the engine does not count

    @property
    def once_ns(self) -> int:
        """All of it with one step."""
        return round(self.text_ns + self.step_ns + self.decode_ns)


def fitted(measured: Sequence[Measured], start: DenoiseCoefficients) -> DenoiseCoefficients:
    """Return the least-squares fit of a forward pass, by relative error, and the means of the other stages. Passes of a
    step that run apart (`start.joined_tokens_max`) have a fixed time each."""
    rows: list[tuple[float, float, float]] = []
    for one in measured:
        forwards, tokens, took = forwards_of(start, one.shape, one.pictures), tokens_of(start, one.shape), one.step_ns
        work = sum(forwards) * tokens / max(1.0, took)
        rows.append((len(forwards) / max(1.0, took), work, work * tokens))
    fixed_ns, token_ns, pair_ns = solve_nonnegative(rows, [1.0] * len(rows))
    pixels = sum(one.shape.pixels * one.pictures for one in measured)
    prompts = sum(max(1, one.shape.passes) for one in measured)
    return msgspec.structs.replace(
        start,
        base_ns=0.0,
        floor_ns=fixed_ns,
        is_floor_hidden=False,
        token_ns=token_ns,
        pair_ns=pair_ns,
        text_ns=sum(one.text_ns for one in measured) / prompts,
        decode_ns=sum(one.decode_ns for one in measured) / pixels,
    )
