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
FilePath = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
Pixels = Annotated[int, msgspec.Meta(ge=1, le=16_384)]
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

    mean_s: AtLeastZero = 10.0  # mean
    cv: Annotated[float, msgspec.Meta(ge=0, le=30)] = 1.0  # gamma: 0 is fixed, 1 exponential


class Common(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True, tag_field="kind"
):
    """What every kind has."""

    name: Name = ""  # in the ids of its requests; unset: its place in the list
    model: str = ""  # unset: the first that is served
    tenant: str = "default"  # who is charged and queued
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
    is_cacheable: bool = True  # false: nobody hashes the prompts, so that no cache holds them and no router knows them
    predicted: Predicted | None = None  # unset: nobody in front predicts; policies learn lengths by themselves


class Synthetic(Language, frozen=True, kw_only=True, omit_defaults=True, tag="synthetic"):
    """Single requests, open loop. Prompts of a family begin alike."""

    arrivals: Arrivals = Poisson()  # when
    rate_scale: Positive = 1.0  # multiplies `arrivals.rate_per_s`
    count: Count = 200  # requests
    prompt: Lengths = Lengths(mean=512.0, longest=32_768)  # with what is shared
    output: Lengths = Lengths(mean=128.0)  # of an answer that nothing cuts short
    families: Families = 0  # 0: no two prompts share a beginning
    family_skew: Skew = 0.0  # Zipf exponent of their popularity; 0: all alike
    shared_tokens: PrefixTokens = 0  # of a family's prompts; a shorter prompt is all shared


class Sessions(Language, frozen=True, kw_only=True, omit_defaults=True, tag="sessions"):
    """Conversations: each turn's prompt is all that was said before and something new, sent when the reader of the
    answer has thought. A session whose request fails ends."""

    arrivals: Arrivals = Poisson(rate_per_s=1.0)  # of sessions
    rate_scale: Positive = 1.0  # multiplies `arrivals.rate_per_s`
    count: Count = 200  # sessions
    turns: Lengths = Lengths(kind="geometric", mean=4.0, longest=64)  # of a session
    think: Think = Think()  # between an answer and what follows it
    families: Annotated[int, msgspec.Meta(ge=1, le=10**6)] = 1  # different system prompts
    family_skew: Skew = 0.0  # Zipf exponent of their popularity; 0: all alike
    system_tokens: PrefixTokens = 512  # length of a system prompt
    user: Lengths = Lengths(mean=64.0)  # new tokens of a turn
    output: Lengths = Lengths(mean=128.0)  # of an answer that nothing cuts short
    context_max: Tokens = 32_768  # a session ends before a prompt and its limit of output are longer

    def __post_init__(self) -> None:
        _check_context(self, self.system_tokens)


class ClosedLoop(Language, frozen=True, kw_only=True, omit_defaults=True, tag="closed_loop"):
    """A fixed number of clients; each waits for its answer, thinks, and sends its next request, answered or refused."""

    clients: Count = 8  # each with one request in flight
    count: Count = 200  # requests of all clients
    think: Think = Think(mean_s=0.0, cv=0.0)  # between an answer and what follows it
    ramp_s: AtLeastZero = 0.0  # over which the clients begin
    prompt: Lengths = Lengths(mean=512.0, longest=32_768)  # with what is shared
    output: Lengths = Lengths(mean=128.0)  # of an answer that nothing cuts short
    families: Families = 0  # 0: no two prompts share a beginning
    family_skew: Skew = 0.0  # Zipf exponent of their popularity; 0: all alike
    shared_tokens: PrefixTokens = 0  # of a family's prompts; a shorter prompt is all shared


class Trace(Language, frozen=True, kw_only=True, omit_defaults=True):
    """What every kind that reads a file has."""

    path: FilePath  # beside the scenario file, or absolute
    skip: Many = 0  # requests (of ShareGPT texts: conversations) at the beginning
    count: Count | None = None  # at most so many; unset: to the end
    rate_scale: Positive = 1.0  # so many times the requests in the same time: some drawn, or copies with new content


class Mooncake(Trace, frozen=True, kw_only=True, omit_defaults=True, tag="mooncake"):
    """Mooncake's JSON lines (FAST'25 release): lengths, and hash ids of 512 tokens that prompts share."""

    quantum_ms: AtLeastZero = 3000.0  # the trace rounds its times to this; arrivals are spread over it


class Azure(Trace, frozen=True, kw_only=True, omit_defaults=True, tag="azure"):
    """Azure's CSV of LLM inference (2023, 2024): TIMESTAMP, ContextTokens, GeneratedTokens."""


class BurstGpt(Trace, frozen=True, kw_only=True, omit_defaults=True, tag="burstgpt"):
    """BurstGPT's CSV. Rows without response tokens are failures (its README); they are left out."""

    models: tuple[str, ...] = ()  # of the column Model; empty: all
    log_types: tuple[str, ...] = ()  # of the column Log Type; empty: all
    quantum_ms: AtLeastZero = 1000.0  # the trace rounds its times to this


class Qwen(Trace, frozen=True, kw_only=True, omit_defaults=True, tag="qwen"):
    """Qwen-Bailian's JSON lines: hash ids of 16 tokens that prompts share, and chats that go on."""

    types: tuple[str, ...] = ()  # text, search, image, file; empty: all


class ShareGpt(Trace, frozen=True, kw_only=True, omit_defaults=True, tag="sharegpt"):
    """ShareGPT's JSON of conversations (texts, no times), or JSON lines of lengths as LLMServingSim writes them."""

    arrivals: Arrivals | None = None  # of conversations; unset: the times in the file, of JSON lines only
    think: Think = Think()  # between turns of a conversation
    chars_per_token: Annotated[float, msgspec.Meta(ge=0.1, le=100)] = 4.0  # texts are not tokenized
    context_max: Tokens = 32_768  # a conversation ends before a prompt and its limit of output are longer

    def __post_init__(self) -> None:
        _check_context(self, 0)


class Replay(Trace, frozen=True, kw_only=True, omit_defaults=True, tag="replay"):
    """Evidence of a simulated or live run, `.parquet` or JSON lines: arrivals, lengths, tenants and models. `tenant`
    and `model`, where set, take the place of those recorded."""

    keeps_hits: bool = True  # what was found in a cache then is a beginning that all prompts of a tenant share
    unanswered_tokens: Tokens = 128  # output of a request that ended without any: nobody knows what it would have been


def _check_context(spec: Sessions | ShareGpt, system_tokens: int) -> None:
    limit = 1 if spec.tells_length else spec.max_tokens
    if system_tokens + limit >= spec.context_max:
        raise ConfigError(
            f"context_max {spec.context_max} has no room for a prompt beside {system_tokens} system tokens and "
            f"{limit} of output; raise it, or lower max_tokens"
        )


class PictureShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of request of a diffusion workload."""

    share: Positive = 1.0  # of all requests, against the shares of the other shapes
    height: Pixels = 1024  # pixels
    width: Pixels = 1024  # pixels
    steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 28  # denoise steps
    frames: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1  # more than one: a video
    fps: Many = 0  # of a video
    n: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1  # pictures of one prompt
    guidance_scale: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # 0: the model's
    passes: Annotated[int, msgspec.Meta(ge=0, le=3)] = 0  # forward passes per step; 0: the model's
    reference_tokens: Many = 0  # of reference pictures: an edit of one has as many as its picture
    loras: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0  # adapters to draw one of; 0: none
    control_nets: Annotated[int, msgspec.Meta(ge=0, le=4)] = 0  # networks beside the denoiser, at every step
    image_prompts: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0  # pictures that an IP-Adapter encodes
    deterministic: bool = False  # shares no batch


class Diffusion(Common, frozen=True, kw_only=True, omit_defaults=True, tag="diffusion"):
    """Single requests, open loop."""

    arrivals: Arrivals = Poisson(rate_per_s=1.0)  # when
    rate_scale: Positive = 1.0  # multiplies `arrivals.rate_per_s`
    count: Count = 200  # requests
    shapes: tuple[PictureShape, ...] = (PictureShape(),)  # what is asked for


LanguageParams: TypeAlias = Synthetic | Sessions | ClosedLoop | Mooncake | Azure | BurstGpt | Qwen | ShareGpt | Replay
WorkloadParams: TypeAlias = LanguageParams | Diffusion


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
