"""Every decision carries its layer of seed 002, and the right one for its kind; evidence can be grouped by it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import msgspec
import pytest
from tests.sim.studios import Studio
from tests.sim.workloads import ENGINE, fleet, mix, request, run

import headway
from headway.adapters.telemetry.jsonl import evidence_lines
from headway.core.decisions import Decision, Layer
from headway.core.effects import Record, Send
from headway.core.events import DrainAsked, MessageArrived
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Finished, Probed, Report
from headway.core.reports import DenoiseCoefficients
from headway.core.request import DiffusionRequest, Slo
from headway.core.units import NS_PER_MS
from headway.sched.diffusion.params import DiffusionParams, Preemption
from headway.sched.dispatch import Patience
from headway.sched.fleet.breaker import BreakerParams
from headway.sched.fleet.health import HealthParams
from headway.sched.fleet.hedge import HedgeParams
from headway.sched.fleet.migration import MigrationParams
from headway.sched.fleet.shape_pools import ShapePoolParams
from headway.sched.llm.params import LlmParams
from headway.sched.nodes import FrontConfig
from headway.sched.registry import PolicyChoice
from headway.sched.router.machine import PdPools
from headway.sched.watch import Silence
from headway.sim.fleet import CONTROL, DIFFUSION_MODEL, FRONT, Fleet
from headway.sim.pools import PoolParams

# Who decides what, and the layer it belongs to (docs/telemetry.md shows the same table).
LAYERS: Final[dict[tuple[str, str], Layer]] = {
    ("front", "admit"): "pool",
    ("front", "route"): "pool",
    ("front", "scale"): "pool",
    ("front", "handoff"): "pd",
    ("front", "health"): "pool",
    ("front", "breaker"): "pool",
    ("front", "retry"): "pool",
    ("front", "hedge"): "pool",
    ("control", "drain"): "pool",
    ("control", "migrate"): "pool",
    ("control", "reshape"): "pool",
    ("worker", "admit"): "batch",
    ("worker", "order"): "batch",
    ("worker", "chunk"): "step",
    ("worker", "blocked"): "cache",
    ("worker", "preempt"): "cache",
    ("worker", "pull"): "cache",
    ("worker", "handoff"): "pd",
    ("worker", "batch"): "batch",
    ("worker", "interrupt"): "step",
    ("worker", "prepare"): "batch",
}
A, B = NodeId("rep-0"), NodeId("rep-1")
SOURCE = Path(headway.__file__).parent
PAGE = Path(__file__).parents[2] / "docs/telemetry.md"

World = Fleet | Studio
Made = tuple[str, str, str]  # who, kind, level


def crowded() -> Fleet:
    """Few blocks, rivals in the queue, chunks by the TPOT budget: what an LLM machine decides."""
    llm = LlmParams(
        max_seqs=8,
        step_tokens=64,
        order=PolicyChoice("shortest_predicted"),
        chunk=PolicyChoice("tpot_budget", {"tokens": 64, "tokens_min": 1}),
    )
    engine = msgspec.structs.replace(ENGINE, kv_blocks=14)
    requests = [msgspec.structs.replace(item, slo=Slo(tpot_ns=NS_PER_MS)) for item in mix(40, seed=3, gap_ns=100_000)]
    return run(fleet(replicas=1, engine=engine, llm=llm), requests)


def full() -> Fleet:
    """A queue that is full: what admission decides."""
    front = FrontConfig(admission=PolicyChoice("bounded", {"queue_max": 4}))
    return run(fleet(replicas=1, llm=LlmParams(max_seqs=2), front=front), mix(60, gap_ns=10_000))


def pressed() -> Fleet:
    """Deadlines that the queue makes tight: what admission asks of autoscaling."""
    front = FrontConfig(admission=PolicyChoice("predictive"))
    mixed = mix(80, gap_ns=4 * NS_PER_MS)
    due = [Slo(ttft_deadline_ns=item.arrived_ns + 400 * NS_PER_MS) for item in mixed]
    requests = [msgspec.structs.replace(item, slo=slo) for item, slo in zip(mixed, due, strict=True)]
    return run(fleet(replicas=1, llm=LlmParams(max_seqs=2), front=front), requests)


def split() -> Fleet:
    """Prefill and decode replicas, and one decode replica without room: what P/D decides."""
    ran = fleet(front=FrontConfig(pools=PdPools(prefill=(A,), decode=(B,), prompt_tokens_min=8)))
    ran.offer([request("req-1", 40, 12, NS_PER_MS)])
    ran.sim.run(until_ns=300 * NS_PER_MS)
    machine = ran.worker(1).worker.machine
    machine.reserve_blocks(machine.kv_blocks_free)
    ran.offer([request("req-2", 40, 12, 301 * NS_PER_MS)])
    ran.sim.run()
    return ran


def pulled() -> Fleet:
    """A crowd at the replica that holds a prompt's beginning: what a replica does that is to fetch it."""
    front = FrontConfig(router=PolicyChoice("mooncake", {"pull_tokens_per_s": 1e6, "threshold": 1.0}))
    ran = fleet(front=front)
    ran.offer([request("req-0", 96, 4, NS_PER_MS)])
    ran.sim.run(until_ns=300 * NS_PER_MS)
    crowd = [request(f"crowd-{n}", 400, 4, 301 * NS_PER_MS, family=n) for n in range(1, 8)]
    return run(ran, [*crowd, *(request(f"req-{n}", 120, 4, 302 * NS_PER_MS) for n in range(1, 5))])


def moved() -> Fleet:
    """A replica that comes back empty beside a crowded one: what the control node decides."""
    ran = fleet(migration=MigrationParams(gain_tokens_min=100, cooldown_s=0.01))
    ran.sim.run(until_ns=NS_PER_MS // 2)
    ran.sim.kill(B)
    ran.offer([request(f"req-{n}", 60, 200, NS_PER_MS, family=n) for n in range(6)])
    ran.sim.at(200 * NS_PER_MS, lambda _: ran.sim.restart(B))
    ran.sim.run()
    return ran


def reshaped() -> Studio:
    """Large pictures for one replica, and two that wait for small ones: what control decides of diffusion replicas."""
    split = 512 * 512
    pool = PoolParams(
        name="small",
        kind="diffusion",
        model="SD3.5-medium",
        replicas=2,
        diffusion=DiffusionParams(pixels_max=split),
    )
    large = DiffusionParams(pixels_min=split + 1)
    pools = pool, msgspec.structs.replace(pool, name="large", replicas=1, diffusion=large)
    ran = Studio(*pools, log=True, shapes=ShapePoolParams(cold_start_s=1.0, hold_s=0.0))
    return ran.run(
        DiffusionRequest(RequestId(f"pic-{n}"), TenantId("t"), ModelId("SD3.5-medium"), 28, 1024, 1024, n, NS_PER_MS)
        for n in range(8)
    )


def failing() -> Fleet:
    """Prompts that take longer than replicas may be silent, and bad health checks: what a front does about failure."""
    front = FrontConfig(
        hedge=HedgeParams(after_ms=0.01),
        breaker=BreakerParams(faults_min=1),
        health=HealthParams(down_after=1),
        patience=Patience(silence=Silence(first_token_s=0.0005)),
    )
    ran = fleet(front=front)
    probed = MessageArrived(5 * NS_PER_MS, "probe", A, Probed(False, "no answer"))
    ran.sim.at(5 * NS_PER_MS, lambda _: ran.sim.feed(FRONT, probed))
    ran.sim.at(6 * NS_PER_MS, lambda now: ran.sim.feed(CONTROL, DrainAsked(now, "an operator", B, True)))
    return run(ran, mix(8, gap_ns=NS_PER_MS))


def painted() -> Fleet:
    """Two small pictures that come while a large one is painted: what a diffusion machine decides."""
    diffusion = DiffusionParams(order=PolicyChoice("sjf"), preempt=Preemption(price_s=0.0))
    ran = fleet(replicas=0, diffusion_replicas=1, diffusion=diffusion, denoise=DenoiseCoefficients(1e6, 0.0, 1e4, 0.0))
    ran.offer(
        DiffusionRequest(RequestId(f"pic-{n}"), TenantId("t"), DIFFUSION_MODEL, steps, side, 64, n, at * NS_PER_MS)
        for n, (steps, side, at) in enumerate([(40, 512, 1), (2, 64, 2), (2, 128, 2)])
    )
    ran.sim.run()
    return ran


def prepared() -> Studio:
    """A picture of a size that has not run: what a diffusion replica does first."""
    pool = PoolParams(name="all", kind="diffusion", model="SD3.5-medium", warm=())
    asked = DiffusionRequest(RequestId("pic-0"), TenantId("t"), ModelId("SD3.5-medium"), 4, 256, 256, 0, NS_PER_MS)
    return Studio(pool, log=True).run([asked])


WORLDS = {
    "crowded": crowded,
    "full": full,
    "pressed": pressed,
    "split": split,
    "pulled": pulled,
    "moved": moved,
    "reshaped": reshaped,
    "failing": failing,
    "painted": painted,
    "prepared": prepared,
}


def made(ran: World) -> Iterator[Made]:
    """Every decision that left a node, with who made it."""
    for turn in ran.sim.log.turns():
        who = {FRONT: "front", CONTROL: "control"}.get(turn.node, "worker")
        for effect in turn.effects:
            found: tuple[Decision, ...] = ()
            if isinstance(effect, Record) and isinstance(effect.entry, Decision):
                found = (effect.entry,)
            elif isinstance(effect, Send) and isinstance(effect.message, Finished):
                found = effect.message.marks.decisions
            elif isinstance(effect, Send) and isinstance(effect.message, Report):
                found = effect.message.decisions
            yield from ((who, one.kind, one.level) for one in found)


def written() -> set[tuple[str, str]]:
    """(kind, level) of every decision that the source makes, as it is written there."""
    found: set[tuple[str, str]] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                found |= set(_written_in(function))
    return found


def _written_in(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        if call.func.id == "Decision":
            level, kind = call.args[0], call.args[2]
        elif call.func.id == "record" and len(call.args) > 4:
            level, kind = call.args[1], call.args[2]
        else:
            continue
        if function.name in ("record", "_decide"):  # passes on what its callers say
            continue
        yield from ((name, said) for said in _texts(function, level) for name in _texts(function, kind))


def _texts(function: ast.FunctionDef, value: ast.expr) -> list[str]:
    """What a text or a local name can be."""
    if isinstance(value, ast.Constant):
        return [str(value.value)]
    assert isinstance(value, ast.Name), f"{function.name}: write kind and level as texts, not {ast.unparse(value)}"
    return [
        str(node.value.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == value.id
    ]


@pytest.fixture(scope="module")
def worlds() -> dict[str, World]:
    return {name: build() for name, build in WORLDS.items()}


def test_every_kind_that_the_source_makes_has_a_layer_and_the_table_no_other() -> None:
    # SPEC L-5
    kinds = {kind for kind, _ in written()}
    assert kinds == {kind for _, kind in LAYERS}
    assert {level for _, level in written()} <= set(get_args(Layer))


def test_small_worlds_make_every_decision_of_the_table(worlds: dict[str, World]) -> None:
    # SPEC L-5
    assert {(who, kind) for ran in worlds.values() for who, kind, _ in made(ran)} == set(LAYERS)


def test_a_decision_carries_the_layer_of_its_kind(worlds: dict[str, World]) -> None:
    # SPEC L-5
    found = {one for ran in worlds.values() for one in made(ran)}
    assert sorted(found) == sorted((who, kind, level) for (who, kind), level in LAYERS.items())


@pytest.mark.parametrize("name", ["crowded", "split"])
def test_evidence_groups_by_layer(worlds: dict[str, World], name: str) -> None:
    # SPEC L-5
    records = [stream.evidence for stream in worlds[name].sim.clients.streams.values() if stream.evidence is not None]
    lines = evidence_lines(records).splitlines()
    assert len(lines) == len(records) > 0
    levels: dict[str, set[str]] = {}
    for record, line in zip(records, lines, strict=True):
        groups: dict[str, list[str]] = {}
        for decision in msgspec.json.decode(line)["decisions"]:
            groups.setdefault(decision["level"], []).append(decision["kind"])
        for level, kinds in groups.items():
            assert kinds == [one.kind for one in record.decisions if one.level == level]
            levels.setdefault(level, set()).update(kinds)
    assert set(levels) <= set(get_args(Layer))
    assert "route" in levels["pool"]
    assert "admit" in levels["batch"] | levels.get("pool", set())
    assert name != "split" or levels["pd"] == {"handoff"}


def test_the_page_shows_the_same_table() -> None:
    rows = {
        (cells[0], cells[1].strip("`")): cells[2].strip("`")
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith(("| front ", "| control ", "| worker "))
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    assert rows == LAYERS
