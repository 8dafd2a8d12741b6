"""What a scenario offers: its list of `[[workload]]` tables, each of one `kind`.

`workload.build` turns them into clients.
"""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec

from headway.core.errors import ConfigError
from headway.core.request import Slo
from headway.core.units import Ns, ns_from_ms
from headway.workload.arrivals import Arrivals, Poisson
from headway.workload.lengths import Lengths

Count = Annotated[int, msgspec.Meta(ge=1, le=10**9)]
Many = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Families = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
PrefixTokens = Annotated[int, msgspec.Meta(ge=0, le=10**7)]
Skew = Annotated[float, msgspec.Meta(ge=0, le=5)]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=10**7)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
AtLeastZero = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Name = Annotated[str, msgspec.Meta(pattern="^[a-z0-9_]*$", max_length=32)]


class SloParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What each request is promised at its arrival; what is unset is not promised."""

    ttft_ms: Positive | None = None  # to the first token
    ttft_ms_per_1k: AtLeastZero = 0.0  # and so much more per thousand prompt tokens (SMetric, arXiv 2607.08565)
    tpot_ms: Positive | None = None  # per output token after the first
    e2e_ms: Positive | None = None  # to the last token, or of a diffusion request to its output

    def __post_init__(self) -> None:
        if self.ttft_ms_per_1k and self.ttft_ms is None:
            raise ConfigError("slo.ttft_ms_per_1k is set and slo.ttft_ms, which it adds to, is not")

    def at(self, arrived_ns: Ns, prompt_tokens: int) -> Slo:
        """The SLO of a request, fixed at its arrival (SPEC L-4)."""
        ttft = None
        if self.ttft_ms is not None:
            ttft = arrived_ns + ns_from_ms(self.ttft_ms + self.ttft_ms_per_1k * prompt_tokens / 1000)
        tpot = None if self.tpot_ms is None else ns_from_ms(self.tpot_ms)
        e2e = None if self.e2e_ms is None else arrived_ns + ns_from_ms(self.e2e_ms)
        return Slo(ttft, tpot, e2e)


class Predicted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Output lengths that come with the requests, as a predictor in front would say them: truth * bias * e^(error z)
    with z from a standard normal distribution."""

    error: Annotated[float, msgspec.Meta(ge=0, le=5)] = 0.0  # deviation of the logarithm; 0: exact
    bias: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0  # median of predicted over true


class Think(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What passes between an answer and what its reader sends next."""

    mean_s: AtLeastZero = 10.0
    cv: Annotated[float, msgspec.Meta(ge=0, le=30)] = 1.0  # gamma: 0 is fixed, 1 exponential


class Common(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, tag_field="kind"
):
    """What every kind has."""

    name: Name = ""  # in the ids of its requests; unset: its place in the list
    model: str = ""  # unset: the first that is served
    tenant: str = "default"
    tenants: Count = 1  # more than one: TENANT-0, TENANT-1, …, drawn evenly
    tenant_weight: Count = 1  # its share where tenants compete
    urgency: Annotated[int, msgspec.Meta(ge=-1000, le=1000)] = 0  # higher is sooner
    slo: SloParams = SloParams()
    seed: Many = 0  # added to that of the scenario
    start_s: AtLeastZero = 0.001  # of the first arrival's process; by then replicas have said that they are there
    time_scale: Positive = 1.0  # every gap and think time is so much longer


class Language(Common, frozen=True, kw_only=True, omit_defaults=True):
    """What every kind of token sequences has."""

    max_tokens: Tokens = 4096  # the limit that clients send; an answer that would be longer ends there
    tells_length: bool = False  # clients send the length of their answer as the limit, and want all of it (ignore_eos)
    predicted: Predicted | None = None  # unset: nobody in front predicts; policies learn lengths by themselves


class Synthetic(Language, frozen=True, kw_only=True, omit_defaults=True, tag="synthetic"):
    """Single requests, open loop. Prompts of a family begin alike."""

    arrivals: Arrivals = Poisson()
    rate_scale: Positive = 1.0  # multiplies `arrivals.rate_per_s`
    count: Count = 200
    prompt: Lengths = Lengths(mean=512.0, longest=32_768)
    output: Lengths = Lengths(mean=128.0)
    families: Families = 0  # 0: no two prompts share a beginning
    family_skew: Skew = 0.0  # Zipf exponent of their popularity; 0: all alike
    shared_tokens: PrefixTokens = 0  # of a family's prompts; a shorter prompt is all shared


class Sessions(Language, frozen=True, kw_only=True, omit_defaults=True, tag="sessions"):
    """Conversations: each turn's prompt is all that was said before and something new, sent when the reader of the
    answer has thought. A session whose request fails ends."""

    arrivals: Arrivals = Poisson(rate_per_s=1.0)  # of sessions
    rate_scale: Positive = 1.0
    count: Count = 200  # sessions
    turns: Lengths = Lengths(kind="geometric", mean=4.0, longest=64)
    think: Think = Think()
    families: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1  # different system prompts
    family_skew: Skew = 0.0
    system_tokens: PrefixTokens = 512  # length of a system prompt
    user: Lengths = Lengths(mean=64.0)  # new tokens of a turn
    output: Lengths = Lengths(mean=128.0)
    context_max: Tokens = 32_768  # a session ends before a prompt and its limit of output are longer


class ClosedLoop(Language, frozen=True, kw_only=True, omit_defaults=True, tag="closed_loop"):
    """A fixed number of clients; each waits for its answer, thinks, and sends its next request, answered or refused."""

    clients: Count = 8
    count: Count = 200  # requests of all clients
    think: Think = Think(mean_s=0.0, cv=0.0)
    ramp_s: AtLeastZero = 0.0  # over which the clients begin
    prompt: Lengths = Lengths(mean=512.0, longest=32_768)
    output: Lengths = Lengths(mean=128.0)
    families: Families = 0
    family_skew: Skew = 0.0
    shared_tokens: PrefixTokens = 0


WorkloadParams: TypeAlias = Synthetic | Sessions | ClosedLoop


def names(specs: Sequence[Common]) -> list[str]:
    """The name of each: its own, or its place. Raises ConfigError when two are equal."""
    found: dict[str, int] = {}
    for place, spec in enumerate(specs):
        name = spec.name or str(place)
        if name in found:
            both = f"workload[{found[name]}] and workload[{place}]"
            raise ConfigError(f"{both} are both called {name!r}; set another workload[{place}].name")
        found[name] = place
    return list(found)
