"""Step times that others have published, as step models: prefill and decode were measured apart, and stay apart here.

DistServe (OSDI'24, simdistserve at 82831f1, Apache-2.0): vLLM of 2024 on A100-80G, a + b tokens + c sum(n^2).
Splitwise (ISCA'24, splitwise-sim at 8f99e7d, data/perf_model.csv, MIT): medians per shape, fitted here without negative
terms; an old stack that launches kernels one by one, so do not take it for what the hardware can do.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from headway.core.errors import ConfigError
from headway.cost.fitted import Coefficients
from headway.cost.llm import StepShape


class PhaseStep(msgspec.Struct, frozen=True, kw_only=True):
    """A `cost.step.StepModel` of one replica whose steps are all prefill or all decode."""

    name: str
    prefill: Coefficients
    decode: Coefficients
    decode_large: Coefficients | None = None  # from `large_from` decodes on
    large_from: int = 0
    error: str  # of the fit, where it is one of ours

    def step_ns(self, shape: StepShape) -> float:
        """Device time of a step. Raises ConfigError for a mixed one.

        A chunk of one token is a decode: so begins what was handed over from another replica.
        """
        if shape.prefill_tokens and shape.prefill_tokens == shape.chunks:
            shape = StepShape(shape.decodes + shape.chunks, shape.kv_tokens + shape.chunk_context)
        if not shape.prefill_tokens:
            is_large = self.decode_large is not None and shape.decodes >= self.large_from
            return (self.decode_large if is_large and self.decode_large else self.decode).step_ns(shape)
        if shape.decodes:
            raise ConfigError(
                f"{self.name} was measured with prefill and decode apart, and says nothing about a step "
                f"of {shape.decodes} decodes and {shape.prefill_tokens} prompt tokens; simulate pools "
                "of prefill and of decode with it"
            )
        return self.prefill.step_ns(shape)

    def host_ns(self, rows: int) -> float:  # noqa: ARG002  as every step model
        """It is in the measured times."""
        return 0.0


def find_published(name: str) -> PhaseStep:
    """Return a model by name. Raises ConfigError."""
    if name not in PUBLISHED:
        raise ConfigError(f"no published cost is called {name!r}; known are {', '.join(PUBLISHED)}")
    return PUBLISHED[name]


def _distserve(
    name: str,
    prefill: tuple[float, float, float],
    decode: tuple[float, float, float],
    large: tuple[float, float, float],
) -> PhaseStep:
    """Milliseconds, as published. sum(n^2) is twice the query-key pairs less the tokens."""
    base, token, square = (value * 1e6 for value in prefill)
    first, then = (
        Coefficients(base_ns=base * 1e6, kv_ns=context * 1e6, row_ns=row * 1e6)
        for base, context, row in (decode, large)
    )
    return PhaseStep(
        name=f"distserve-{name}",
        prefill=Coefficients(base_ns=base, token_ns=token - square, pair_ns=2 * square),
        decode=first,
        decode_large=then,
        large_from=95,
        error="closed form of the source",
    )


def _splitwise(name: str, prefill: tuple[float, ...], decode: tuple[float, ...], error: str) -> PhaseStep:
    """Prefill: ms, us/token, ns/pair, ms/prompt. Decode: ms, us/row, ns/token of context."""
    base, token, pair, prompt = prefill
    step, row, context = decode
    return PhaseStep(
        name=f"splitwise-{name}",
        prefill=Coefficients(base_ns=base * 1e6, token_ns=token * 1e3, pair_ns=pair, chunk_ns=prompt * 1e6),
        decode=Coefficients(base_ns=step * 1e6, row_ns=row * 1e3, kv_ns=context),
        error=error,
    )


_ALL: Final = (
    _distserve(
        "opt-13b-a100-tp1",
        (18.10254647486372, 0.1019122572698738, 7.122264314252114e-06),
        (19.934702624895458, 0.0006269356524350583, 0.03850697740828398),
        (7.1661889468253595, 0.0005798000403396046, 0.15831096191764046),
    ),
    _distserve(
        "opt-13b-a100-tp2",
        (14.742973695171262, 0.06857720739764, 2.4495727400243586e-06),
        (13.294796350285385, 0.00034109219700723494, 0.06296393225243659),
        (10.638741913126715, 0.00031183369638295723, 0.08562913604102729),
    ),
    _distserve(
        "opt-13b-a100-tp4",
        (12.062297033449054, 0.03808140082550695, 5.226249731787869e-07),
        (10.256231678259395, 0.00018786702316166354, 0.03269273629225551),
        (10.483514938375274, 0.00017120888562939117, 0.04566648525887034),
    ),
    _distserve(
        "opt-66b-a100-tp4",
        (29.441636037717455, 0.151352180625198, 8.317450765979451e-06),
        (30.760284619429587, 0.000451947603788462, 0.063284195750671),
        (27.47082137429487, 0.0004046845541646486, 0.12480667738300383),
    ),
    _splitwise(
        "llama-2-70b-a100-tp8",
        (0.0, 90.64, 23.86, 50.16),
        (44.09, 195.7, 334.2),
        "prefill: median 7 %, worst 36 %; decode: median 1 %, worst 7 %",
    ),
    _splitwise(
        "llama-2-70b-h100-tp8",
        (14.98, 17.12, 24.53, 31.38),
        (29.94, 204.8, 167.8),
        "prefill: median 10 %, worst 42 %; decode: median 2 %, worst 7 %",
    ),
)

PUBLISHED: Final[Mapping[str, PhaseStep]] = {entry.name: entry for entry in _ALL}
