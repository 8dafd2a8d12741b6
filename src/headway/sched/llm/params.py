"""Settings of the LLM machine, and the combinations that are refused at load (SPEC B6)."""

from typing import Annotated, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.ports import ModelLimits
from headway.cost.llm import StepCost
from headway.sched.registry import PolicyChoice, select

ORDERS = "headway.sched.llm.policies.order"
CHUNKS = "headway.sched.llm.policies.chunk"
ASYNC_DEPTH_MAX = 4

Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class LlmParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an LLM replica computes next."""

    max_seqs: Positive = 64  # sequences that hold blocks at a time
    step_tokens: Positive = 2048  # tokens computed per step, decodes included
    chunk: PolicyChoice = PolicyChoice("constant", {"tokens": 512})
    order: PolicyChoice = PolicyChoice("fcfs")
    prefix_cache: bool = True  # keep computed blocks, and reuse them for prompts that begin alike
    async_depth: Positive = 2  # plans outstanding: 1 synchronous, 2 asynchronous, more with pipeline stages
    overlap_prefills: bool = True  # false: a pure prefill step is not planned behind another one
    watermark: Natural = 0  # blocks that an admission leaves free while others run
    preemptions_max: Natural = 2  # per request; after so many it returns only with its worst case reserved
    swap: bool = False  # preempt to host slots where that is cheaper than computing again
    pool: Literal["blocks", "counting"] = "blocks"  # counting: simulations without cache and block tables
    decisions: bool = True  # record decisions (SPEC L-3)


def provides(params: LlmParams, belief: StepCost | None) -> dict[str, bool]:
    """What a policy may need, and whether it is there."""
    return {
        "prefix_cache": params.prefix_cache,
        "belief": belief is not None,
        "overlap": params.async_depth > 1,
    }


def check_settings(params: LlmParams, host_slots: int, belief: StepCost | None) -> None:
    """Raise ConfigError for what cannot work with any model; every message names both keys."""
    if params.step_tokens < params.max_seqs:
        raise ConfigError(
            f"step_tokens = {params.step_tokens} is below max_seqs = {params.max_seqs}: "
            "a step must cover one token of every running sequence; raise step_tokens or lower max_seqs"
        )
    if params.async_depth > ASYNC_DEPTH_MAX:
        raise ConfigError(f"async_depth = {params.async_depth} is above {ASYNC_DEPTH_MAX} step credits")
    if params.swap and not host_slots:
        raise ConfigError("swap = true needs host_slots > 0 in the engine; set host_slots or turn swap off")
    if params.swap and belief is None:
        raise ConfigError(
            "swap = true needs a belief (step cost) to weigh it against recompute; configure belief or turn swap off"
        )
    if params.pool == "counting" and params.prefix_cache:
        raise ConfigError("pool = 'counting' has no block identities, prefix_cache = true needs them; turn one off")
    if params.pool == "counting" and params.swap:
        raise ConfigError("pool = 'counting' has no block identities, swap = true needs them; turn one off")
    if not params.overlap_prefills and params.async_depth == 1:
        raise ConfigError(
            "overlap_prefills = false means nothing with async_depth = 1: no step overlaps; "
            "remove it or raise async_depth"
        )
    has = provides(params, belief)
    select(ORDERS, "order", params.order, has)
    _cls, chunk = select(CHUNKS, "chunk", params.chunk, has)
    tokens = getattr(chunk, "tokens", None)
    if isinstance(tokens, int) and tokens > params.step_tokens:
        raise ConfigError(
            f"chunk.params.tokens = {tokens} is above step_tokens = {params.step_tokens}: it could never be used"
        )


def check_watermark(params: LlmParams, kv_blocks: int) -> None:
    """Raise ConfigError when nothing is left to admit with."""
    if params.watermark >= kv_blocks:
        raise ConfigError(f"watermark = {params.watermark} leaves nothing of kv_blocks = {kv_blocks}")


def check(params: LlmParams, limits: ModelLimits, belief: StepCost | None) -> None:
    """Raise ConfigError for what cannot work with this model; every message names both keys."""
    check_settings(params, limits.host_slots, belief)
    if params.swap and belief is not None and not belief.params.kv_bytes_per_block:
        raise ConfigError("swap = true needs cost.kv_bytes_per_block > 0: with 0 every copy would look free")
    check_watermark(params, limits.kv_blocks)
