"""Live processes against the simulator: the same settings and arrivals, the same decisions."""

import asyncio
from pathlib import Path

from tests.e2e.serving import serve

from headway.bench.asks import Ask, prompt, send
from headway.bench.twin import Overheads, Twin, fleet_params, public_id, read_run, sent, simulate
from headway.core.units import NS_PER_MS
from headway.live.config import Host, file_layer, resolve
from headway.live.eventlog import replay
from headway.sim.fleet import FRONT
from headway.sim.truth import LinearTruth

STEP_MS = 10
CONFIG = """
[model]
replicas = 2
[engine]
kind = "synthetic"
[engine.synthetic]
step_us = {step_us}
token_us = 0.0
[scheduler]
step_tokens = 256
chunk = {{ type = "constant", params = {{ tokens = 64 }} }}
[front]
router = {{ type = "least_requests" }}
[telemetry]
event_logs = "{folder}"
"""
# (arrival in ms, prompt, output): a step takes 10 ms, so the replica with fewer requests is clear whenever one arrives.
SIZES = (
    (500, 150, 120), (800, 40, 10), (1100, 64, 100), (1400, 200, 30), (1900, 10, 10), (2200, 65, 5), (2500, 130, 60),
    (2800, 90, 60), (3600, 30, 1),
)  # fmt: skip
ASKS = [Ask(f"ask-{n}", at * NS_PER_MS, prompt(1, n, size, 250), out) for n, (at, size, out) in enumerate(SIZES)]
# Of a plausible size; no time is compared, and decisions that are clear do not hang on them.
COSTS = Overheads(submit_ns=300_000, tokens_ns=300_000, edge_ns=2_000_000, tail_ns=2_000_000)
CLEAR_MS = 90


def test_live_decides_what_the_simulator_decides(tmp_path: Path) -> None:
    # SPEC J1
    file = tmp_path / "headway.toml"
    file.write_text(CONFIG.format(step_us=STEP_MS * 1000, folder=tmp_path))
    with serve("--config", str(file)) as server:
        seen = asyncio.run(send(server.url, "synthetic", ASKS))
        server.process.terminate()
        assert server.end() == 0
    run = read_run(tmp_path)
    params = fleet_params(resolve([file_layer(file)], Host.here()).config, run.recipes, COSTS)
    truth = LinearTruth(base_ns=STEP_MS * NS_PER_MS, token_ns=0.0, kv_ns=0.0)
    twin = Twin(params, lambda _: truth, COSTS)
    arrivals = run.recorded.front.arrivals.values()
    simulated = simulate(twin, sent(arrivals, {ask.name: ask.at_ns for ask in ASKS}), COSTS)

    assert {name: outcome.output_tokens for name, outcome in seen.items()} == {a.name: a.output_tokens for a in ASKS}
    assert {name: o.output_tokens for name, o in simulated.items()} == {a.name: a.output_tokens for a in ASKS}
    there, here = run.recorded.fates(), twin.recorded().fates()
    assert there == here
    assert {fate.routes for fate in here.values()} == {("rep-0",), ("rep-1",)}
    assert {len(fate.chunks) for fate in here.values()} == {1, 2, 3, 4}

    # The cause lies in the schedule, not in luck: no answer ends near an arrival.
    ends = {public_id(name): at_ns for name, (at_ns, _) in twin.recorded().front.ends.items()}
    gaps = [abs(at_ns - ask.at_ns) for name, at_ns in ends.items() for ask in ASKS if ask.name != name]
    assert min(gaps) > CLEAR_MS * NS_PER_MS

    # What live's nodes were told, told to nodes that the simulator builds, has the same effects.
    turns, differences = replay(twin.build_front(), tmp_path / f"{FRONT}.events")
    assert turns > len(ASKS)
    assert differences == []
    for recipe in run.recipes:
        node = recipe.spec.node
        turns, differences = replay(twin.build_worker(node, 1), tmp_path / f"{node}-1.events")
        assert turns > len(ASKS)
        assert differences == []
