"""Steps that are no events of their own change nothing that anybody can see (SPEC J6)."""

from functools import cache

import msgspec
import pytest
from tests.sim.both_ways import Seen, run_out, without_tokens
from tests.sim.workloads import VOCAB, fleet, mix

from headway.core.draw import draw_below
from headway.core.events import StepsDone, TimerFired
from headway.core.units import NS_PER_MS
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig, WorkerConfig
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import PdPools
from headway.sim.driver import SimParams
from headway.sim.fleet import FRONT, Fleet, replica_id
from headway.sim.network import NetworkParams
from headway.sim.truth import LinearTruth

COUNT = 24
SEEDS = range(10)
ROUTERS = ("cost_aware", "least_tokens", "round_robin", "least_requests")


def build(seed: int, *, jumps: bool) -> Fleet:
    """A world whose features depend on the seed."""

    def one(what: str, *of: object) -> object:
        return of[draw_below(seed, what, 0, 0, len(of))]

    credits = 1 + draw_below(seed, "credits", 0, 0, 2)
    split = PdPools(prefill=(replica_id(0),), decode=(replica_id(1),), prompt_tokens_min=20)
    llm = LlmParams(max_seqs=24, step_tokens=256, chunk=PolicyChoice("constant", {"tokens": 64}))
    changes = {"async_depth": credits, "prefix_cache": one("cache", True, False)}
    return fleet(
        engine=SyntheticParams(kv_blocks=one("kv", 400, 1500), vocab_size=VOCAB, check=True),  # type: ignore[arg-type]  # drawn
        llm=msgspec.structs.replace(llm, **changes),
        worker=WorkerConfig(credits=credits, report_interval_ms=one("report", 5, 20, 50)),  # type: ignore[arg-type]  # drawn
        front=FrontConfig(
            router=PolicyChoice(str(one("router", *ROUTERS))),
            admission=PolicyChoice(str(one("admission", "open", "open", "bounded", "predictive"))),
            pools=one("split", split, PdPools(), PdPools()),  # type: ignore[arg-type]  # drawn
        ),
        truth=LinearTruth(
            base_ns=one("base", 2e6, 30e6),  # type: ignore[arg-type]  # drawn
            jitter=one("jitter", 0.0, 0.3),  # type: ignore[arg-type]  # drawn
            host_base_ns=one("host", 0.0, 5e5),  # type: ignore[arg-type]  # drawn
            kv_ns=one("even", 0.0, 10.0),  # type: ignore[arg-type]  # drawn; steps of round lengths end with other events
            seed=seed,
        ),
        sim=SimParams(check=jumps and seed < 2, log=True, network=NetworkParams(copy_bytes_per_s=1e7), jumps=jumps),
    )


class Told(Seen):
    """And how many steps were told in how many pieces."""

    def __init__(self, ran: Fleet) -> None:
        super().__init__(ran)
        self.owed = sum(len(turn.event.earlier) for turn in ran.sim.log.turns() if isinstance(turn.event, TimerFired))
        self.pieces = [len(turn.event.timings) for turn in ran.sim.log.turns() if isinstance(turn.event, StepsDone)]


def disturb(ran: Fleet, seed: int, span: int) -> None:
    """Replicas die and come back, clients leave."""
    for place, node in enumerate(ran.replicas):
        if draw_below(seed, "dies", 0, place, 2):
            dies_ns = draw_below(seed, "death", 0, place, span)
            ran.sim.at(dies_ns, lambda _, n=node: ran.sim.kill(n))  # type: ignore[misc]  # mypy cannot infer lambdas with defaults
            ran.sim.at(dies_ns + 40 * NS_PER_MS, lambda _, n=node: ran.sim.restart(n))  # type: ignore[misc]  # the same
    for place, name in enumerate(f"req-{i}" for i in range(COUNT)):
        if draw_below(seed, "leaves", 0, place, 6) == 0:
            leaves_ns = span * place // COUNT + draw_below(seed, "wait", 0, place, 400 * NS_PER_MS)
            ran.sim.at(leaves_ns, lambda _, i=name: ran.sim.leave(FRONT, i))  # type: ignore[misc]  # the same


def simulate(seed: int, *, jumps: bool, is_calm: bool) -> Told:
    span = (300, 1000, 3000)[draw_below(seed, "span", 0, 0, 3)] * NS_PER_MS
    texts = mix(COUNT, seed=seed, gap_ns=span // COUNT, longest=200)
    lengths = {item.id: item.max_tokens for item in texts}
    if draw_below(seed, "short", 0, 0, 2):  # answers end before their limit, and nobody knows when
        lengths = {name: 1 + draw_below(seed, "length", 0, i, most) for i, (name, most) in enumerate(lengths.items())}
    ran = build(seed, jumps=jumps)
    without_tokens(ran, lengths)
    for item in texts:
        ran.sim.arrive(FRONT, item, item.arrived_ns)
    if not is_calm:
        disturb(ran, seed, span)
    run_out(ran, COUNT, 2 * span)
    return Told(ran)


@cache
def both(seed: int, is_calm: bool) -> tuple[Told, Told]:
    return simulate(seed, jumps=True, is_calm=is_calm), simulate(seed, jumps=False, is_calm=is_calm)


@pytest.mark.parametrize("is_calm", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_steps_run_ahead_change_no_decision_no_record_and_no_time(seed: int, is_calm: bool) -> None:  # SPEC J6
    fast, slow = both(seed, is_calm)
    assert fast.differs_in(slow) == []


def test_the_comparison_is_between_different_ways() -> None:
    pieces = [both(seed, True)[0].pieces for seed in SEEDS]
    assert sum(map(sum, pieces)) > 5 * sum(map(len, pieces)) / 2  # several steps a piece
    assert sum(both(seed, True)[0].owed for seed in SEEDS) > 20  # reports that nobody looked at
    assert not any(both(seed, True)[1].pieces for seed in SEEDS)
    assert sum(any(told) for told in pieces) >= len(SEEDS) // 2


def test_the_comparison_covers_loss_and_hand_off() -> None:
    slow = [both(seed, False)[1] for seed in SEEDS]
    assert sum(dict(seen.recovery)["resumed"] for seen in slow) > 0
    assert any(b'"kind":"handoff"' in record for seen in slow for record in seen.records)
