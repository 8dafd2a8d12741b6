"""What a replica of an LLM pool holds, how long its steps take, and what its scheduler believes to begin with."""

from pathlib import Path
from typing import Final, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.core.ports import ModelLimits
from headway.cost.deployment import Deployment, Layout, TwoBatch, kv_tokens_fit, weight_bytes_of_device
from headway.cost.fitted import CostFile, Stamp, parse_cost_file
from headway.cost.fitted import LinearStep as FittedStep
from headway.cost.llm import StepCostParams, StepShape, pairs
from headway.cost.measured import corrected
from headway.cost.measured_silicon import CORRECTIONS
from headway.cost.published import find_published
from headway.cost.roofline import RooflineModel
from headway.cost.step import StepModel
from headway.sim.catalogue import Catalogue
from headway.sim.linear import LinearStep
from headway.sim.pools import PoolParams

AXES: Final = ("tp", "pp", "cp", "ep", "dp")  # of a layout
VOCAB: Final = 1 << 20  # token ids stand for content only
LINEAR_BLOCKS: Final = 4096
PUBLISHED: Final = "published:"  # of a pool's cost, before a name of cost.published
_ROWS, _CONTEXT, _CHUNK = 64, 65_536, 4096  # where a step model is probed


class LlmReplica(msgspec.Struct, frozen=True):
    """One replica of a pool. Nobody but its executor knows `step`."""

    limits: ModelLimits
    step: StepModel
    belief: StepCostParams
    price_per_hour: float = 0.0  # of all its devices, in USD
    weight_bytes: float = 0.0  # that a start loads


def llm_replica(pool: PoolParams, catalogue: Catalogue) -> LlmReplica:
    """Return what the replicas of a pool are; reads the pool's cost file. Raises ConfigError for what fits nowhere."""
    try:
        return _replica(pool, catalogue)
    except ConfigError as error:
        named = f"pool {pool.name}: "
        raise ConfigError(f"{error}" if f"{error}".startswith(named) else f"{named}{error}") from None


def _replica(pool: PoolParams, catalogue: Catalogue) -> LlmReplica:
    if pool.role != "mixed" and pool.scheduler.pool == "counting":
        raise ConfigError(
            f"pool {pool.name}: role = {pool.role} hands blocks over, and scheduler.pool = 'counting' has none; "
            "use pool = 'blocks'"
        )
    if pool.cost == "linear":
        return _linear(pool)
    deployment = deployment_of(pool, catalogue)
    if pool.cost == "roofline":
        roofline = RooflineModel(deployment)
        return _catalogued(pool, deployment, roofline, believed(roofline), None)
    if pool.cost == "measured":
        step, _ = corrected(deployment, pool.hardware.efficiency, CORRECTIONS)
        return _catalogued(pool, deployment, step, believed(step), None)
    if pool.cost.startswith(PUBLISHED):
        published = find_published(pool.cost.removeprefix(PUBLISHED))
        return _catalogued(pool, deployment, published, believed(published), None)
    file = _read_cost(pool)
    _check_stamp(pool, file.stamp)
    return _catalogued(pool, deployment, FittedStep(file), _of_file(file), file.kv_tokens)


def deployment_of(pool: PoolParams, catalogue: Catalogue) -> Deployment:
    """Return a pool's model on its devices. Raises ConfigError for what the catalogues do not have."""
    hardware = pool.hardware
    return Deployment(
        model=catalogue.model(pool.model),
        device=catalogue.device(hardware.device),
        layout=Layout(
            tp=hardware.tp,
            pp=hardware.pp,
            cp=hardware.cp,
            ep=hardware.ep,
            dp=hardware.dp,
            is_filled=hardware.pipeline == "filled",
        ),
        dtype=pool.dtype,
        kv_dtype=pool.kv_dtype,
        efficiency=catalogue.efficiency(hardware.efficiency),
        link=catalogue.link(hardware.link),
        network=catalogue.link(hardware.network),
        two_batch=TwoBatch() if hardware.overlap == "two_batch" else None,
    )


def _catalogued(
    pool: PoolParams, deployment: Deployment, step: StepModel, belief: StepCostParams, kv_tokens: int | None
) -> LlmReplica:
    model, size = deployment.model, pool.engine
    fits = kv_tokens_fit(deployment, size.memory_share) if kv_tokens is None else kv_tokens
    blocks = fits // size.block_size if size.kv_blocks is None else size.kv_blocks
    if blocks < 1:
        raise ConfigError(
            f"pool {pool.name}: {pool.model} in {pool.dtype} leaves no room for KV on {deployment.layout.devices} x "
            f"{pool.hardware.device} with engine.memory_share = {size.memory_share}; use more devices (hardware.tp, "
            "hardware.pp), a narrower dtype or a larger device"
        )
    limits = ModelLimits(
        model=pool.model,
        vocab_size=VOCAB,
        max_model_len=size.max_model_len or model.context_max,
        block_size=size.block_size,
        kv_blocks=blocks,
        kv_bytes_per_block=round(size.block_size * model.kv_bytes_per_token(deployment.kv_type)),
        host_slots=size.host_slots,
        layers=model.layers,
        eos_token_ids=(),
        dtype=pool.dtype,
        device=pool.hardware.device,
    )
    price = deployment.device.price_per_hour * pool.hardware.devices
    weights = weight_bytes_of_device(deployment) * pool.hardware.devices
    return LlmReplica(limits, step, _with_block(pool.belief or belief, limits), price, weights)


def _read_cost(pool: PoolParams) -> CostFile:
    try:
        content = Path(pool.cost).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"pool {pool.name}: cost = {pool.cost!r}: {error.strerror or error}; use roofline, measured, linear, "
            "published:NAME, or a file that `headway calibrate` wrote"
        ) from None
    return parse_cost_file(content, pool.cost)


def _check_stamp(pool: PoolParams, stamp: Stamp) -> None:
    """A fit says nothing of another model, device or layout. Names are compared as far as the shorter one goes."""
    measured = {"model": stamp.model.rpartition("/")[2], "hardware.device": stamp.device}
    asked = {"model": pool.model.rpartition("/")[2], "hardware.device": pool.hardware.device}
    differ = [key for key, name in measured.items() if not _same(name, asked[key])]
    differ += [f"hardware.{axis}" for axis in AXES if stamp.layout.get(axis, 1) != getattr(pool.hardware, axis)]
    if differ:
        layout = ", ".join(f"{axis} = {count}" for axis, count in stamp.layout.items()) or "one device"
        raise ConfigError(
            f"pool {pool.name}: {pool.cost} was fitted to {stamp.model} on {stamp.device}, {layout}; the pool has "
            f"another {', '.join(differ)}: calibrate a log of it, or make the pool what was measured"
        )


def _same(one: str, other: str) -> bool:
    a, b = one.lower(), other.lower()
    return a.startswith(b) or b.startswith(a)


def _of_file(file: CostFile) -> StepCostParams:
    """The belief of a fit is the fit."""
    fitted = file.coefficients
    mode: Literal["linear", "roofline"] = "roofline" if fitted.combine == "max" else "linear"
    return StepCostParams(
        base_ns=fitted.base_ns,
        row_ns=fitted.row_ns,
        kv_ns=fitted.kv_ns,
        token_ns=fitted.token_ns,
        pair_ns=fitted.pair_ns,
        mode=mode,
    )


def _linear(pool: PoolParams) -> LlmReplica:
    size, linear = pool.engine, pool.linear
    limits = ModelLimits(
        model=pool.model,
        vocab_size=VOCAB,
        max_model_len=size.max_model_len or linear.max_model_len,
        block_size=size.block_size,
        kv_blocks=size.kv_blocks or LINEAR_BLOCKS,
        kv_bytes_per_block=size.block_size * linear.kv_bytes_per_token,
        host_slots=size.host_slots,
        layers=1,
        eos_token_ids=(),
        dtype=pool.dtype,
        device="none",
    )
    step = LinearStep(linear)
    return LlmReplica(limits, step, _with_block(pool.belief or believed(step, mode="linear"), limits))


def _with_block(belief: StepCostParams, limits: ModelLimits) -> StepCostParams:
    """The bytes of a block are a size of the engine, known after load; not something to believe."""
    if belief.kv_bytes_per_block:
        return belief
    return msgspec.structs.replace(belief, kv_bytes_per_block=limits.kv_bytes_per_block)


def believed(step: StepModel, mode: Literal["linear", "roofline"] = "roofline") -> StepCostParams:
    """Return the coefficients of `cost.llm` that come nearest to a step model: slopes between a few probed steps.

    One decode gives what every step costs; context, prompt tokens and query-key pairs are varied one by one from there.
    """
    one = step.step_ns(StepShape(1, 1))
    deep = step.step_ns(StepShape(1, _CONTEXT))
    wide = step.step_ns(StepShape(_ROWS, _ROWS))
    short, long = _prefill(step, _CHUNK, 0), _prefill(step, 2 * _CHUNK, 0)
    late = _prefill(step, _CHUNK, _CONTEXT)
    per_kv = max(0.0, (deep - one) / (_CONTEXT - 1))
    per_pair = max(0.0, late - short) / (_CHUNK * _CONTEXT)
    more = pairs(0, 2 * _CHUNK) - pairs(0, _CHUNK)
    per_token = max(0.0, (long - short - per_pair * more) / _CHUNK)
    per_row = max(0.0, (wide - one) / (_ROWS - 1) - per_kv)
    if mode == "roofline":  # a few decodes hide behind the weights: their products are those of as many prompt tokens
        per_row += per_token
    base = max(0.0, one - per_kv - (per_row if mode == "linear" else 0.0))
    return StepCostParams(base_ns=base, row_ns=per_row, kv_ns=per_kv, token_ns=per_token, pair_ns=per_pair, mode=mode)


def _prefill(step: StepModel, count: int, start: int) -> float:
    return step.step_ns(StepShape(0, 0, count, pairs(start, count), chunks=1, chunk_context=start + count))
