"""`[plan]` of a scenario: what `headway plan` searches, and what an answer has to hold."""

from typing import Annotated, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.sched.llm.params import LlmParams
from headway.sched.registry import PolicyChoice

Count = Annotated[int, msgspec.Meta(ge=1, le=4096)]
Counts = Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=16)]
Seeds = Annotated[tuple[int, ...], msgspec.Meta(min_length=2, max_length=64)]
Mode = Literal["mixed", "pd"]


class LayoutCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What steps cost on one layout, where no catalogue should say it."""

    cost: str  # as a pool's: a file of `headway calibrate`, published:NAME, measured, linear
    device: str = ""  # unset: any
    tp: Count = 1
    pp: Count = 1


class PlanParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every combination is a layout; of each the fewest replicas that hold the SLO are searched."""

    pool: str = ""  # that is planned, as a template of everything not named here; unset: those of the first model
    attainment: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.9  # share of all requests that must meet every target
    objective: Literal["devices", "cost"] = "devices"  # what is fewest: devices, or dollars per hour
    modes: tuple[Mode, ...] = ()  # pd: prefill and decode apart; unset: as the scenario's pools are
    devices: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()  # types to try; unset: the pool's
    tp: Counts = (1, 2, 4, 8)  # tensor-parallel sizes
    pp: Counts = (1,)  # pipeline stages
    cp: Counts = (1,)  # context-parallel ranks
    dp: Counts = (1,)  # attention ranks inside a replica, of models with experts
    ep: Counts = (1,)  # ranks that experts lie over
    sp: Counts = (1,)  # sequence-parallel devices, of diffusion models
    models: Count = 1  # that one request passes, as an LLM, a denoiser and speech; of diffusion models
    chunk: Annotated[tuple[Count, ...], msgspec.Meta(max_length=16)] = ()  # prompt tokens of a chunk; unset: the pool's
    splits: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)] = ()  # P:D replicas, as 2:1; unset: any
    devices_max: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64  # of an answer
    prices: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}  # USD per hour by device; unset: the catalogue's
    mix: bool = False  # with objective = "cost": also two device types behind one router
    seeds: Seeds = (1, 2, 3)  # of arrivals, lengths and noise, the same for every candidate
    count: Annotated[int, msgspec.Meta(ge=10, le=10**7)] | None = None  # requests of a run, by workload; unset: its own
    confirm: Annotated[float, msgspec.Meta(ge=1, le=100)] = 3.0  # an answer must hold for a load so many times as long
    confirm_runs: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5  # seeds of that: `seeds`, and the numbers after them
    costs: tuple[LayoutCost, ...] = ()  # of single layouts

    def __post_init__(self) -> None:
        for split in self.splits:
            parse_split(split)
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"plan.seeds: {self.seeds} names one twice; every seed must be another draw")
        if self.mix and (self.objective != "cost" or len(self.devices) < 2):
            raise ConfigError('plan.mix = true needs plan.objective = "cost" and two or more plan.devices')
        if self.splits and self.modes and "pd" not in self.modes:
            raise ConfigError('plan.splits are of plan.modes = ["pd"]; add that mode or leave them out')

    @property
    def confirm_seeds(self) -> tuple[int, ...]:
        """Seeds under which an answer must hold for longer."""
        more = range(max(self.seeds) + 1, max(self.seeds) + 1 + self.confirm_runs)
        return (*self.seeds, *more)[: self.confirm_runs]


def parse_split(text: str) -> tuple[int, int]:
    """`2:1` -> two prefill replicas for one of decode. Raises ConfigError."""
    first, colon, second = text.partition(":")
    if not colon or not first.isdigit() or not second.isdigit() or not int(first) or not int(second):
        raise ConfigError(f"plan.splits: {text!r}; write prefill:decode replicas, for example 2:1")
    return int(first), int(second)


def with_chunk(scheduler: LlmParams, tokens: int) -> LlmParams:
    """Return the scheduler with prompts cut into so many tokens, and steps that have room for one such cut."""
    return msgspec.structs.replace(
        scheduler,
        chunk=PolicyChoice("constant", {"tokens": tokens}),
        step_tokens=max(tokens, scheduler.step_tokens),
    )
