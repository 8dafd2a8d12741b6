"""Which layouts a plan tries: every combination of device, parallel sizes, chunk and mode, or why one cannot work."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, Literal

import msgspec

from headway.core.errors import ConfigError
from headway.cost.deployment import check, kv_tokens_fit, weight_bytes_of_device
from headway.cost.llm import StepShape, pairs
from headway.sim.catalogue import Catalogue
from headway.sim.plan_fluid import Bound, Flow, Room, fewest, prompt_ns
from headway.sim.plan_load import Ask, Load, kept_share, lightest
from headway.sim.plan_params import LayoutCost, PlanParams, parse_split, with_chunk
from headway.sim.pools import PoolParams
from headway.sim.replicas import LlmReplica, deployment_of, llm_replica
from headway.sim.scenario import Scenario

GIB: Final = 1 << 30
Role = Literal["mixed", "prefill", "decode"]
_ALONE_MAX: Final = 2000  # requests whose time alone is worked out


class Part(msgspec.Struct, frozen=True):
    """One pool of a layout, how many replicas it needs at least, and what bounds them. `usd_per_h`: of one replica."""

    pool: PoolParams
    usd_per_h: float
    least: int
    bound: str

    @property
    def devices(self) -> int:
        """Of one replica."""
        return self.pool.devices


class Layout(msgspec.Struct, frozen=True):
    """What is tried: pools without a number of replicas. `split`: they grow in this ratio; None: each by itself."""

    name: str
    mode: str  # mixed, pd, mix, diffusion
    parts: tuple[Part, ...]
    split: tuple[int, ...] | None = None

    def devices(self, sizes: Sequence[int]) -> int:
        """Devices of so many replicas of each part."""
        return sum(part.devices * size for part, size in zip(self.parts, sizes, strict=True))

    def usd_per_h(self, sizes: Sequence[int]) -> float:
        """Dollars per hour of so many replicas of each part."""
        return sum(part.usd_per_h * size for part, size in zip(self.parts, sizes, strict=True))

    @property
    def least(self) -> tuple[int, ...]:
        """The fewest replicas of each part."""
        return tuple(part.least for part in self.parts)

    def scenario(self, base: Scenario, sizes: Sequence[int]) -> Scenario:
        """Return the scenario with these pools."""
        pools = tuple(
            msgspec.structs.replace(part.pool, replicas=size)
            for part, size in zip(self.parts, sizes, strict=True)
            if size
        )
        return msgspec.structs.replace(base, pools=pools, plan=None)


class Refused(msgspec.Struct, frozen=True):
    """A layout that is not tried, and why."""

    name: str
    reason: str


class _Unfit(Exception):
    """Why a pool cannot work."""


class Space:
    """The layouts of a scenario's LLM pools."""

    def __init__(self, scenario: Scenario, plan: PlanParams, load: Load, templates: Sequence[PoolParams]) -> None:
        """`templates`: the pools that are planned, one mixed, or one of prefill and one of decode."""
        self._scenario, self._plan, self._load = scenario, plan, load
        self._catalogue = Catalogue(scenario.catalogue)
        self._templates = {pool.role: pool for pool in templates}
        self._share = kept_share(scenario, plan)
        self.refused: list[Refused] = []
        self._seen: dict[str, Part | None] = {}

    def layouts(self) -> list[Layout]:
        """Return what can work; what cannot is in `refused`."""
        found = []
        asked = self._plan.modes or (("mixed",) if "mixed" in self._templates else ("pd",))
        for mode in dict.fromkeys(asked):
            found += list(self._mixed() if mode == "mixed" else self._apart())
        return found

    def _mixed(self) -> Iterator[Layout]:
        for pool, name in self._pools("mixed"):
            part = self._part(pool, name)
            if part is not None:
                yield Layout(name, "mixed", (part,))

    def _apart(self) -> Iterator[Layout]:
        for device in self._devices():
            first, second = self._parts("prefill", device), self._parts("decode", device)
            splits = [parse_split(text) for text in self._plan.splits]
            for (p_name, p_part), (d_name, d_part) in product(first, second):
                name = f"{p_name} + {d_name.removeprefix(f'{device} ')}"
                for split in splits or (None,):
                    label = name if split is None else f"{name} {split[0]}:{split[1]}"
                    yield Layout(label, "pd", (p_part, d_part), split)

    def _parts(self, role: Role, device: str) -> list[tuple[str, Part]]:
        parts = [(name, self._part(pool, name)) for pool, name in self._pools(role, (device,))]
        return [(name, part) for name, part in parts if part is not None]

    def _devices(self) -> Sequence[str]:
        pool = next(iter(self._templates.values()))
        return self._plan.devices or (pool.hardware.device,)

    def _pools(self, role: Role, devices: Sequence[str] = ()) -> Iterator[tuple[PoolParams, str]]:
        """Every pool of a role and what it is called."""
        plan = self._plan
        template = self._templates.get(role) or next(iter(self._templates.values()))
        chunks = [0] if role == "decode" or not plan.chunk else list(plan.chunk)
        for device, tp, pp, cp, dp, ep, chunk in product(
            devices or self._devices(), plan.tp, plan.pp, plan.cp, plan.dp, plan.ep, chunks
        ):
            sizes = {"TP": tp, "PP": pp, "CP": cp, "DP": dp, "EP": ep}
            words = [f"{key}{size}" for key, size in sizes.items() if size > 1 or key == "TP"]
            hardware = msgspec.structs.replace(template.hardware, device=device, tp=tp, pp=pp, cp=cp, dp=dp, ep=ep)
            scheduler = msgspec.structs.replace(template.scheduler, decisions=False)  # nobody reads them
            if chunk:
                words.append(f"chunk {chunk}")
                scheduler = with_chunk(scheduler, chunk)
            mark = {"mixed": "", "prefill": "P ", "decode": "D "}[role]
            pool = msgspec.structs.replace(
                template,
                name={"mixed": template.name, "prefill": "prefill", "decode": "decode"}[role],
                role=role,
                replicas=1,
                hardware=hardware,
                scheduler=scheduler,
                cost=_cost(template, plan.costs, device, tp, pp),
            )
            yield pool, f"{device} {mark}{' '.join(words)}"

    def _part(self, pool: PoolParams, name: str) -> Part | None:
        """Return the pool with its lower bound, or None; then `refused` says why."""
        if name not in self._seen:
            try:
                self._seen[name] = self._fitted(pool)
            except (ConfigError, _Unfit) as error:
                self.refused.append(Refused(name, str(error)))
                self._seen[name] = None
        return self._seen[name]

    def _fitted(self, pool: PoolParams) -> Part:
        plan = self._plan
        if pool.devices > plan.devices_max:
            raise _Unfit(f"one replica holds {pool.devices} devices, plan.devices_max = {plan.devices_max}")
        template = self._templates.get(pool.role) or next(iter(self._templates.values()))
        self._check_cost(pool, template)
        if pool.cost != "linear":
            check_memory(pool, self._catalogue, self._load, plan.attainment)
        replica = llm_replica(pool, self._catalogue)
        self._check_alone(pool, replica)
        bound = self._bound(pool, replica)
        if bound is None or bound.replicas * pool.devices > plan.devices_max:
            needs = "no number of replicas is" if bound is None else f"{bound.replicas * pool.devices} devices are"
            raise _Unfit(
                f"{needs} enough for the load alone, plan.devices_max = {plan.devices_max}"
                + ("" if bound is None else f" (bound by {bound.limit})")
            )
        price = replica.price_per_hour
        if (asked := plan.prices.get(pool.hardware.device)) is not None:
            price = asked * pool.devices
        if plan.objective == "cost" and not price:
            raise _Unfit(f"nobody knows what {pool.hardware.device} costs; set plan.prices")
        return Part(pool, price, bound.replicas, bound.limit)

    @staticmethod
    def _check_cost(pool: PoolParams, template: PoolParams) -> None:
        """A fit is of one layout; for others it says nothing."""
        is_same = pool.hardware == template.hardware
        if pool.cost == template.cost and pool.cost not in ("roofline", "measured") and not is_same:
            raise _Unfit(f"cost = {pool.cost} was measured on another layout; name one for this in plan.costs")

    def _check_alone(self, pool: PoolParams, replica: LlmReplica) -> None:
        """Refuse what breaks a promise of too many requests even when each has a replica for itself."""
        asks = self._load.asks[:_ALONE_MAX]
        fastest = pool.truth.scale * (1 - pool.truth.spread) * (1 - pool.truth.jitter)
        chunk = pool.scheduler.step_tokens
        if isinstance(tokens := pool.scheduler.chunk.params.get("tokens", None), int):
            chunk = tokens
        late = slow = 0
        if pool.role != "decode":
            known: dict[int, float] = {}
            for ask in asks:
                if ask.ttft_ns is not None and ask.new:
                    if ask.new not in known:
                        known[ask.new] = prompt_ns(replica.step, ask.new, chunk) * fastest
                    late += known[ask.new] > ask.ttft_ns
        if pool.role != "prefill":
            slow = self._slow(asks, replica, fastest)
        for name, misses, what in (("TTFT", late, "its prompt"), ("TPOT", slow, "a step")):
            if misses > (1 - self._plan.attainment) * len(asks):
                raise _Unfit(
                    f"{name}: {misses / len(asks):.0%} of the requests miss it alone on a replica: {what} is slower"
                )

    @staticmethod
    def _slow(asks: Sequence[Ask], replica: LlmReplica, fastest: float) -> int:
        return sum(
            ask.tpot_ns is not None
            and ask.output > 1
            and replica.step.step_ns(StepShape(1, ask.prompt)) * fastest > ask.tpot_ns
            for ask in asks
        )

    def _bound(self, pool: PoolParams, replica: LlmReplica) -> Bound | None:
        asks, share = self._load.asks, self._share
        flow = flow_of(asks, self._load.rate_per_s, share, pool.role)
        tpots = [ask.tpot_ns for ask in asks]
        period = None if None in tpots or not tpots else max(tpot for tpot in tpots if tpot is not None)
        # What misses its TPOT may have seen slower steps: a period is only bound through those that attain.
        room = Room(
            kv_tokens=replica.limits.kv_blocks * replica.limits.block_size,
            max_seqs=pool.scheduler.max_seqs,
            step_tokens=pool.scheduler.step_tokens,
            period_ns=None if period is None else period / self._plan.attainment,
        )
        return fewest(replica.step, flow, room, pool.truth.scale * (1 - pool.truth.spread))


def flow_of(asks: Sequence[Ask], rate_per_s: float, share: float, role: str) -> Flow:
    """Return what arrives at the pools of a role. `share`: of the requests whose work cannot be avoided."""
    prompt = lightest([ask.new for ask in asks], share) if role != "decode" else 0.0
    query_pairs = lightest([pairs(ask.prompt - ask.new, ask.new) for ask in asks], share) if prompt else 0.0
    outputs = [ask.output - 1 for ask in asks]
    decodes = lightest(outputs, share) if role != "prefill" else 0.0
    held = sum(out * (ask.prompt + out / 2) for ask, out in zip(asks, outputs, strict=True)) / max(1, sum(outputs))
    return Flow(rate_per_s, prompt, query_pairs, decodes, held * share)


def check_memory(pool: PoolParams, catalogue: Catalogue, load: Load, attainment: float) -> None:
    """Raise for a replica that cannot hold its weights, or not one request of those that must be served."""
    deployment, size = deployment_of(pool, catalogue), pool.engine
    check(deployment)
    room, weights = deployment.device.memory_bytes * size.memory_share, weight_bytes_of_device(deployment)
    where = f"{deployment.device.name} has {room / GIB:.1f} GiB at engine.memory_share = {size.memory_share}"
    if weights > room:
        raise _Unfit(f"weights do not fit: {weights / GIB:.1f} GiB on a device, {where}")
    tokens = size.kv_blocks * size.block_size if size.kv_blocks else kv_tokens_fit(deployment, size.memory_share)
    if tokens < size.block_size:
        raise _Unfit(f"no room for KV beside {weights / GIB:.1f} GiB of weights: {where}")
    needed = load.tokens_at(attainment)
    if tokens < needed:
        raise _Unfit(
            f"not one request's KV fits: room for {tokens} tokens, {1 - attainment:.0%} of them need {needed} or more"
        )


def _cost(template: PoolParams, costs: Sequence[LayoutCost], device: str, tp: int, pp: int) -> str:
    for known in costs:
        if known.device in ("", device) and (known.tp, known.pp) == (tp, pp):
            return known.cost
    return template.cost
