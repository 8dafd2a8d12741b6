"""Worlds short of blocks: bursts that wait long, swap that pays, cancels in every state, steps that run ahead."""

from copy import deepcopy
from dataclasses import fields, replace
from random import Random

from msgspec.structs import replace as with_settings
from tests.property.differential import DifferentialWorld
from tests.property.fake_engine import EOS, expected
from tests.property.llm_world import ORDERS, World, WorldConfig, make_limits, random_chunk, random_config

from headway.sched.llm.machine import LlmMachine
from headway.sched.llm.sequence import Seq
from headway.sched.registry import PolicyChoice

COUNTS = tuple(field.name for field in fields(Seq) if field.name != "request")


def pressed_config(rng: Random, orders: tuple[str, ...] = ORDERS) -> WorldConfig:
    """Blocks for little more than one request at its longest, and many at once, who then have time to wait.

    Crowded: more run than victims are looked at. Calm: nobody swaps or is cancelled and rows decode to their limits, so
    a head that does not fit waits while grants evict what it would hit. Seated: seats are short, blocks are not, so who
    was displaced could come back at once.
    """
    base = random_config(rng, orders)
    order = base.params.order
    kind = rng.choice(["crowded", "calm", "mixed", "mixed"])
    max_seqs, size, longest = rng.choice([2, 4, 8, 12]), rng.choice([1, 2, 3, 4]), rng.choice([30, 60])
    if order.type == "lpm" and rng.random() < 0.8:  # hits decide, most of the time
        kind, order = "calm", PolicyChoice("lpm", {"queue_max": 64, "skips_max": rng.choice([4, 16])})
    elif order.type == "priority" and rng.random() < 0.4:
        kind, order = "seated", PolicyChoice("priority", {"age_ms": 1000, "min_gap": 1})
    kv_blocks = -(-longest // size) + rng.randint(6, 20)
    if kind == "crowded":
        max_seqs, size, longest, kv_blocks = 16, 2, 30, rng.randint(60, 90)
    elif kind == "calm":
        max_seqs, size, longest = 8, rng.choice([1, 2, 3]), 60
        kv_blocks = longest // size + rng.randint(0, 8)
    elif kind == "seated":
        max_seqs, kv_blocks = rng.choice([2, 3, 4]), 300
    step_tokens, swap = max_seqs + rng.randint(8, 40), kind != "calm" and rng.random() < 0.6
    params = with_settings(
        base.params,
        max_seqs=max_seqs,
        step_tokens=step_tokens,
        chunk=random_chunk(rng, step_tokens),
        order=order,
        watermark=rng.choice([0, 3, 6] if kind == "calm" else [0, 0, 2, 5]),
        swap=swap,
    )
    limits = make_limits(
        block_size=size, kv_blocks=kv_blocks, host_slots=rng.randint(5, 60) if swap else 0, max_model_len=longest
    )
    config = replace(
        base,
        params=params,
        limits=limits,
        kv_bytes_per_block=10**3,
        arrival_rate=0.1,
        burst=rng.randint(6, 12),
        turns=20,
        cancel_rate=rng.choice([0.0, 0.05, 0.2]),
        odd_rate=rng.choice([0.0, 0.0, 0.1]),
        picks_by_state=True,
        endless_rate=rng.choice([0.3, 1.0]),
        lessons=rng.choice([0, 1000, 1000]),
    )
    if kind == "crowded":
        return replace(config, burst=16, urgencies=1)
    if kind == "calm":
        return replace(config, cancel_rate=0.0, odd_rate=0.0, endless_rate=1.0)
    if kind == "seated":
        params = with_settings(params, async_depth=4, overlap_prefills=True, preemptions_max=4)
        return replace(config, params=params, arrival_rate=0.4, burst=1, cancel_rate=0.3, turns=60)
    return config


class AheadWorld(World):
    """When steps are told to be alike, some of them are run unasked and folded in at once; a twin of the machine plans
    each of them, and both end alike."""

    def plan(self) -> bool:
        planned = super().plan()
        if planned and self.rng.random() < 0.8 and all(plan.ahead >= 0 for plan in self.flight):
            self._run_ahead()
        return planned

    def _run_ahead(self) -> None:
        first, depth, newest = self.flight[0].step, len(self.flight), self.flight[-1]
        end = min(newest.step + newest.ahead, first - 1 + self._quiet_steps())
        if end - depth < first:
            return
        last = self.rng.choice([end - depth, self.rng.randint(first, end - depth)])
        real, self.machine = self.machine, deepcopy(self.machine)
        for _ in range(first, last + 1):
            self.complete()
            assert super().plan(), f"nothing to do after {newest.ahead} steps alike were promised"
        plans = real.steps_done(last, depth, [0] * (last - first + 1))
        assert [digest(plan) for plan in plans] == [digest(plan) for plan in self.flight]
        twin, self.machine = self.machine, real
        assert facts(real) == facts(twin)
        self.stats["ahead"] += last - first + 1

    def _quiet_steps(self) -> int:
        """Steps from the oldest open one on in which no row samples its last token by itself."""
        quiet = 1000
        for seq in [seq for bucket in self.machine.state.wheel for seq in bucket]:
            request = self.live[seq]
            alone = expected(request, self.limit[seq])
            if alone[-1] == EOS and not request.sampling.ignore_eos:
                quiet = min(quiet, len(alone) - len(self.got[seq]) - 1)
        return quiet


class AheadDifferentialWorld(AheadWorld, DifferentialWorld):
    """The naive scheduler plans every step, the machine does not."""


def digest(plan):  # type: ignore[no-untyped-def]
    """What a step that was run unasked still tells."""
    return plan.step, plan.kind, plan.decodes, plan.kv_tokens, plan.chunks, plan.join, plan.leave


def facts(machine: LlmMachine) -> dict[str, object]:
    """All that later plans depend on."""
    m = machine.state
    return {
        "steps": (m.step, m.done, m.decodes, m.kv_base, m.running, m.waiting),
        "sequences": {n: [getattr(seq, name) for name in COUNTS] for n, seq in m.seqs.items()},
        "wheel": [list(bucket.items()) for bucket in m.wheel],
        "calendar": m.calendar,
        "blocks": (m.pool.free, list(m.pool.lru), m.pool.state, m.pool.reserved, m.pool.fences, m.pool.fenced),
        "slots": (m.slots.free, m.slots.fences),
    }
