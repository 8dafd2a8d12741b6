"""Step times fitted to measurements: the cost file on disk, and the linear model that it holds.

step_ns = base + row*decodes + kv*(context of decodes) + token*(prefill tokens) + pair*(pairs) + chunk*(chunks)

A fit knows what it was fitted on: engine, version, device, model and layout are stamped into the file, and a shape far
outside the ranges it has seen is refused, not extrapolated.
"""

from typing import Annotated, Final, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.cost.llm import StepShape

NotNegative = Annotated[float, msgspec.Meta(ge=0)]
FORMAT: Final = 1


class Coefficients(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nanoseconds. With `combine = "max"` memory (base, kv) and compute (the rest) overlap: the larger counts."""

    base_ns: NotNegative
    row_ns: NotNegative = 0.0  # per decode
    kv_ns: NotNegative = 0.0  # per token of context of the decodes
    token_ns: NotNegative = 0.0  # per prompt token
    pair_ns: NotNegative = 0.0  # per query-key pair of prompts
    chunk_ns: NotNegative = 0.0  # per chunk
    combine: Literal["sum", "max"] = "sum"
    host_base_ns: NotNegative = 0.0  # host time between steps
    host_row_ns: NotNegative = 0.0  # per decode and chunk

    def step_ns(self, shape: StepShape) -> float:
        """Device time of a step."""
        memory = self.base_ns + self.kv_ns * shape.kv_tokens
        compute = (
            self.row_ns * shape.decodes
            + self.token_ns * shape.prefill_tokens
            + self.pair_ns * shape.prefill_pairs
            + self.chunk_ns * shape.chunks
        )
        return max(memory, compute) if self.combine == "max" else memory + compute


class Ranges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The largest of each that the fit has seen; 0: never any."""

    decodes: int
    kv_tokens: int
    prefill_tokens: int
    prefill_pairs: int


class HeldOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far predictions were off on samples that the fit did not see, as shares: 0.02 is 2 %."""

    samples: int
    mean: float  # mean predicted over mean measured, less one
    mae: float  # mean absolute error over the mean measured
    p50: float | None = None  # of percentiles, less one; None where a sample is no latency of a request
    p99: float | None = None


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was measured. A fit for another engine version is another fit (# vidur#60, vidur#51)."""

    engine: str
    engine_version: str
    device: str
    model: str
    layout: dict[str, int] = {}  # tp, pp, dp, ...; what is not named is 1
    dtype: str = ""


class CostFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `headway calibrate` writes, as JSON."""

    format: Literal[1] = 1
    stamp: Stamp
    source: str  # kind of log, its name, and the start of its SHA-256
    date: str  # of the fit, ISO 8601
    coefficients: Coefficients
    ranges: Ranges
    samples: Annotated[int, msgspec.Meta(ge=1)]  # that the coefficients were fitted to
    held_out: dict[str, HeldOut]  # by metric: step, host, or ttft, tpot, e2e
    kv_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None  # capacity, where the log tells it
    reach: Annotated[float, msgspec.Meta(ge=1)] = 1.25  # a shape up to so many times the ranges is believed
    notes: tuple[str, ...] = ()  # what the fit could not tell apart, what it left out


def parse_cost_file(content: bytes, name: str) -> CostFile:
    """Read a cost file. Raises ConfigError that names the file and what is wrong in it."""
    try:
        return msgspec.json.decode(content, type=CostFile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{name} is no cost file: {error}; `headway calibrate LOG --out {name}` writes one") from None


def format_cost_file(file: CostFile) -> bytes:
    """Return what is written to disk: indented JSON, the same bytes for the same fit."""
    return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


class LinearStep:
    """StepModel of a cost file."""

    def __init__(self, file: CostFile) -> None:
        self.file, self._coefficients = file, file.coefficients
        seen, reach = file.ranges, file.reach
        self._limits = tuple(
            int(largest * reach) for largest in (seen.decodes, seen.kv_tokens, seen.prefill_tokens, seen.prefill_pairs)
        )

    def step_ns(self, shape: StepShape) -> float:
        """Device time of a step. Raises ConfigError for a shape that the fit knows nothing about."""
        decodes, kv_tokens, prefill_tokens, prefill_pairs = self._limits
        if (
            shape.decodes > decodes
            or shape.kv_tokens > kv_tokens
            or shape.prefill_tokens > prefill_tokens
            or shape.prefill_pairs > prefill_pairs
        ):
            raise ConfigError(self.outside(shape))
        return self._coefficients.step_ns(shape)

    def host_ns(self, rows: int) -> float:
        """Host time between steps."""
        return self._coefficients.host_base_ns + self._coefficients.host_row_ns * rows

    def outside(self, shape: StepShape) -> str:
        """Say what of a shape is beyond what the fit has seen; empty: nothing."""
        for limit, name in zip(self._limits, Ranges.__struct_fields__, strict=True):
            value: int = getattr(shape, name)
            if value > limit:
                seen: int = getattr(self.file.ranges, name)
                stamp = self.file.stamp
                return (
                    f"a step with {name} = {value} is outside the fit of {stamp.model} on {stamp.device} "
                    f"({self.file.source}): it has seen {seen} at most, and is believed up to {limit} (reach = "
                    f"{self.file.reach:g}); calibrate with a log of such steps, or limit the scheduler to what was seen"
                )
        return ""
