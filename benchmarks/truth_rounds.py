"""One round of `truth.py`: a live server under a load that is known beforehand, its canary, and its simulated twin."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from truth_canary import Canary, Verdict

from headway.bench import likeness
from headway.bench.asks import Ask, prompt, send
from headway.bench.outcome import Outcome
from headway.bench.recorded import Recorded
from headway.bench.twin import LiveRun, Overheads, Twin, fleet_params, public_id, read_run, sent, simulate
from headway.core.draw import draw_below
from headway.core.ids import NodeId, RequestId
from headway.core.step_record import StepRecord
from headway.core.units import NS_PER_MS, NS_PER_S
from headway.live.config import Config, Host, file_layer, resolve
from headway.live.eventlog import replay
from headway.sim.fleet import FRONT
from headway.sim.truth import StepTruth
from headway.workload.arrivals import poisson
from headway.workload.step_logs import read_steps

READY_S = 120.0
OVERRUN_S = 30.0  # after the last arrival: a machine that is ours has long answered
LOOK_S = 8.0  # between two looks at the canary
LEAD_NS = 3 * NS_PER_S  # before the first request that counts
# What runs for the first time in a process is slow: these come before, live and simulated, and are not compared. They
# overlap, so that every replica gets some.
WARM_NS = [700 * NS_PER_MS + place * 60 * NS_PER_MS for place in range(8)]
WARM = "warm-"


class Case(NamedTuple):
    """What is served and offered. `config`: TOML."""

    name: str
    what: str
    model: str
    config: str
    asks: list[Ask]


class Round(NamedTuple):
    """A live run as it was measured."""

    case: Case
    seen: dict[str, Outcome]
    run: LiveRun
    steps: list[StepRecord]
    config: Config
    folder: Path
    verdict: Verdict


class Comparison(NamedTuple):
    """Live beside simulated."""

    case: Case
    decisions: likeness.Decisions
    times: dict[str, likeness.Times]
    turns: int
    turns_differing: int
    failed: int
    unexplained: list[str]  # in words


class Load(NamedTuple):
    """Poisson arrivals; lengths uniform from the first to the second, outputs of every n-th request from `long`."""

    rate: float
    count: int
    prompts: tuple[int, int]
    outputs: tuple[int, int]
    long: tuple[int, int] = (0, 0)
    every: int = 0  # 0: none is long


def offered(load: Load, seed: int, vocab: int) -> list[Ask]:
    """Draw what is sent and when."""

    def between(what: str, place: int, ends: tuple[int, int]) -> int:
        return ends[0] + draw_below(seed, what, 0, place, ends[1] - ends[0] + 1)

    asks = [Ask(f"{WARM}{place}", at_ns, prompt(seed, -place, 150, vocab), 8) for place, at_ns in enumerate(WARM_NS, 1)]
    for place, at_ns in enumerate(poisson(load.rate, load.count, seed)):
        is_long = load.every and place % load.every == load.every - 1
        tokens = between("output", place, load.long if is_long else load.outputs)
        text = prompt(seed, place, between("prompt", place, load.prompts), vocab)
        asks.append(Ask(f"ask-{place}", LEAD_NS + at_ns, text, tokens))
    return asks


@contextlib.contextmanager
def serving(config: Path) -> Iterator[str]:
    """Start, wait for the ready line, yield the address, drain."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from headway.cli import main; main()", "serve", "--config", str(config), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert process.stdout is not None
    try:
        watchdog = threading.Timer(READY_S, process.kill)
        watchdog.start()
        line = process.stdout.readline()
        watchdog.cancel()
        if not line.startswith("ready: "):
            raise SystemExit(f"the server never got ready; try: headway serve --config {config}")
        yield line.split()[1]
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def measure(case: Case, folder: Path, canary: Canary, is_strict: bool) -> Round | Verdict:
    """Serve, offer, record.

    A round that is given up leaves its verdict only: it takes far longer than its arrivals, or, with `is_strict`, it is
    clear after a while that the machine is not ours.
    """
    folder.mkdir(parents=True)
    file = folder / "headway.toml"
    file.write_text(case.config + f'\n[telemetry]\nevent_logs = "{folder}"\n')
    config = resolve([file_layer(file)], Host.here()).config
    with serving(file) as url:
        began = time.monotonic()
        canary.start()
        seen = asyncio.run(_watched(url, case, canary, is_strict))
        verdict = canary.stop()
        if seen is None:
            return verdict
        past_s = time.monotonic() - began + 1
        with urllib.request.urlopen(f"{url}/debug/trace?seconds={past_s:.0f}&format=steps", timeout=30) as answer:
            (folder / "steps.jsonl").write_bytes(answer.read())
    steps = read_steps((folder / "steps.jsonl").read_bytes(), "steps.jsonl")
    return Round(case, seen, read_run(folder), steps, config, folder, verdict)


async def _watched(url: str, case: Case, canary: Canary, is_strict: bool) -> dict[str, Outcome] | None:
    until = time.monotonic() + case.asks[-1].at_ns / NS_PER_S + OVERRUN_S
    load = asyncio.create_task(send(url, case.model, case.asks))
    while not load.done():
        await asyncio.wait({load}, timeout=LOOK_S)
        if not load.done() and (time.monotonic() > until or (is_strict and canary.is_hopeless())):
            load.cancel()
            await asyncio.wait({load})
            return None
    return load.result()


def compare(there: Round, costs: Overheads, truth: Callable[[NodeId], StepTruth]) -> Comparison:
    """Simulate the twin of a round; `truth(node)` says what steps take."""
    twin = Twin(fleet_params(there.config, there.run.recipes, costs), truth, costs)
    planned = {ask.name: ask.at_ns for ask in there.case.asks}
    live = there.run.recorded
    simulated = simulate(twin, sent(live.front.arrivals.values(), planned), costs)
    plan_ns = {name: planned[public_id(name)] for name in live.front.arrivals if not name.startswith(f"req-{WARM}")}
    jitter_ns = likeness.jitter_ns(live, plan_ns)
    turns, differing = 0, 0
    nodes = [(twin.build_front(), FRONT)]
    nodes += [
        (twin.build_worker(one.spec.node, one.incarnation), NodeId(f"{one.spec.node}-{one.incarnation}"))
        for one in there.run.recipes
    ]
    for node, stem in nodes:
        count, differences = replay(node, there.folder / f"{stem}.events")
        turns, differing = turns + count, differing + len(differences)
    here = twin.recorded()
    alike = likeness.decisions(live, here, jitter_ns, [name for name in live.front.arrivals if name not in plan_ns])
    seen = counted(there.seen)
    return Comparison(
        there.case,
        alike,
        likeness.times(seen, simulated),
        turns,
        differing,
        sum(outcome.error is not None for outcome in seen.values()),
        [told(live, here, request) for request in alike.unexplained[:5]],
    )


def counted(seen: dict[str, Outcome]) -> dict[str, Outcome]:
    """Leave out what only warms up."""
    return {name: outcome for name, outcome in seen.items() if not name.startswith(WARM)}


def told(live: Recorded, here: Recorded, request: RequestId) -> str:
    """What was decided about one request."""
    margin = likeness.margin_ns(here, request) / 1e6
    return f"{request}: margin {margin:.2f} ms\n    live {live.fates()[request]}\n    here {here.fates()[request]}"
