"""Live against simulated: what `headway serve` measures beside what the simulator says, the same settings and arrivals.

usage: python benchmarks/truth.py scheduler|cost|all [--limit-s 660] [--publish] [--accept-busy] [--only NAME ...]

`scheduler`: live processes with the synthetic engine on a fixed step clock: decisions request by request, and times.
`cost`: the torch engine with the default model, its step times fitted to one workload (`headway calibrate`'s fit) and
predicted for others. Both begin with a calibration round of their own, which alone says what links, gateway, client and
host cost. A round counts only if its canary passes; of each workload the first round that passes counts. Failed rounds
are repeated until the limit ends, and counted. `--publish` writes RESULTS.md and README.md between their markers.
"""

import argparse
import datetime
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import truth_report
from truth_canary import OTHERS, Canary, Verdict
from truth_rounds import Case, Comparison, Load, Round, compare, counted, measure, offered

from headway import __version__
from headway.bench.twin import Overheads, overheads
from headway.core.errors import ConfigError
from headway.core.ids import NodeId
from headway.core.units import NS_PER_MS
from headway.cost.fitted import CostFile, LinearStep, Stamp
from headway.sim.calibration import Origin, calibrate_steps
from headway.sim.model_truth import ModelTruth
from headway.sim.pools import TruthParams
from headway.sim.truth import LinearTruth, StepTruth

START_AND_END_S = 12.0  # of a round, beside its arrivals
COST_SHARE = 0.6  # of the limit, kept for the cost part where both are asked for
STEP_MS, TOKEN_US = 40.0, 50.0
MODEL = "SmolLM2-135M-Instruct"
SYNTHETIC = f"""
[engine]
kind = "synthetic"
block_size = 16
kv_blocks = 2048
max_model_len = 4096
[engine.synthetic]
step_us = {STEP_MS * 1000}
token_us = {TOKEN_US}
[model]
replicas = {{replicas}}
[scheduler]
max_seqs = 8
step_tokens = 256
chunk = {{{{ type = "constant", params = {{{{ tokens = 128 }}}} }}}}
order = {{{{ type = "{{order}}" }}}}
async_depth = {{depth}}
[front]
router = {{{{ type = "{{router}}" }}}}
"""
BOUNDED = """admission = { type = "bounded", params = { queue_max = 3 } }
room = { engine_queue_ms = 100.0, cold_requests = 2 }
"""
TORCH = """
[engine]
kind = "torch"
threads = 1
device = "cpu"
max_model_len = 1024
[scheduler]
max_seqs = 3
step_tokens = 512
chunk = {{ type = "constant", params = {{ tokens = {chunk} }} }}
order = {{ type = "{order}" }}
"""


def scheduler_cases() -> tuple[Case, list[Case]]:
    """The calibration, then what is compared.

    Rates and seeds are such that moving every arrival by up to 1 ms moves no figure by more than 2 % in simulation: of
    others, live would not reproduce itself. They were chosen by the simulator alone.
    """

    def case(name: str, setup: tuple[int, str, str, int], rate: float, seed: int, more: str = "") -> Case:
        replicas, router, order, depth = setup
        config = SYNTHETIC.format(replicas=replicas, router=router, order=order, depth=depth) + more
        what = f"{replicas} | `{router}` | `{order}` | {depth} | {rate:g}"
        return Case(name, what, "synthetic", config, offered(Load(rate, 100, (20, 400), (4, 48)), seed, 250))

    return case("calibration", (1, "round_robin", "fcfs", 1), 3.5, 11), [
        case("one-fcfs", (1, "round_robin", "fcfs", 2), 5.0, 7),
        case("one-shortest", (1, "round_robin", "shortest_predicted", 2), 5.0, 7),
        case("two-requests", (2, "least_requests", "fcfs", 2), 8.0, 7),
        case("two-cost", (2, "cost_aware", "shortest_predicted", 2), 5.0, 12),
        case("two-sync", (2, "least_tokens", "fcfs", 1), 6.0, 12),
        case("two-bounded", (2, "least_requests", "fcfs", 2), 12.0, 16, BOUNDED),
    ]


def cost_cases() -> tuple[Case, list[Case]]:
    """The calibration, then a rate, lengths and two policies that it has not seen: these on the rate's arrivals.

    It fills every slot of the scheduler, goes beyond the lengths of the others and cuts prompts into chunks of all
    sizes: a fit is believed where it has been.
    """

    def case(name: str, what: str, load: Load, seed: int, order: str = "fcfs", chunk: int = 64) -> Case:
        return Case(name, what, MODEL, TORCH.format(order=order, chunk=chunk), offered(load, seed, 40_000))

    usual = Load(1.0, 64, (16, 160), (4, 20), (90, 130), 4)
    wide = usual._replace(rate=1.8, count=66, prompts=(16, 200), long=(90, 150))
    even = Load(1.2, 60, (100, 160), (20, 40))
    return case("calibration", "calibration", wide, 21), [
        case("rate", "rate: 1.0/s in place of 1.8/s", usual, 32),
        case("lengths", "lengths: prompts 100-160, outputs 20-40, 1.2/s", even, 23),
        case("order", "policy: `shortest_predicted`, 1.0/s", usual, 32, order="shortest_predicted"),
        case("chunk", "policy: chunk 16, 1.0/s", usual, 32, chunk=16),
    ]


def fitted(file: CostFile) -> Callable[[NodeId], StepTruth]:
    """Truth of a simulation: a cost file, with the scatter of single steps that the fit has seen."""
    held = file.held_out.get("step")
    jitter = 0.0 if held is None else min(2 * held.mae, 0.9)  # uniform: its mean error is half of its width
    params = TruthParams(scale=1.0, jitter=jitter, spread=0.0)
    return lambda node: ModelTruth(LinearStep(file), params, 1, node)


class Calibration(NamedTuple):
    """What the calibration round tells the simulator: everything that is not in the configuration."""

    costs: Overheads
    file: CostFile
    truth: Callable[[NodeId], StepTruth]


def calibrated(there: Round, is_synthetic: bool) -> Calibration:
    """Fit the steps of a round; the synthetic engine's are known, so that only host time is taken from the fit."""
    stamp = Stamp(engine="headway", engine_version=__version__, device="CPU", model=there.case.model)
    origin = Origin(stamp, f"steps of {there.case.name}", datetime.datetime.now(tz=datetime.UTC).date().isoformat())
    file, costs = calibrate_steps(there.steps, origin), overheads(there.run, counted(there.seen))
    if not is_synthetic:
        return Calibration(costs, file, fitted(file))
    known = LinearTruth(base_ns=STEP_MS * NS_PER_MS, token_ns=TOKEN_US * 1000, kv_ns=0.0)
    truth = msgspec.structs.replace(known, host_base_ns=host_ns(there, known))
    return Calibration(costs, file, lambda _: truth)


def host_ns(there: Round, known: LinearTruth) -> float:
    """Mean time from the end of a step to the begin of the next, where the next waited for it (one step in flight).

    The step's end is that of the device's clock: what its sleep overran is the host's.
    """
    gaps = []
    for before, step in pairwise(there.steps):
        if step.idle_gap_ns and step.idle_gap_ns == step.started_ns - before.done_ns:
            ended_ns = before.started_ns + known.base_ns + known.token_ns * (before.decodes + before.prefill_tokens)
            gaps.append(step.started_ns - ended_ns)
    return sum(gaps) / len(gaps)


class Run:
    """Rounds until all cases have one that counts, or the time is over."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._canary = options, Canary(options.others_max)
        print(f"nothing of ours runs: {self._canary.alone(4.0).told()}", flush=True)
        self.deadline = time.monotonic() + options.limit_s
        self._folder = Path(tempfile.mkdtemp(prefix="headway-truth-"))
        self._verdicts: list[Verdict] = []  # of one part, those that count
        self._rounds = self._discarded = 0  # of one part
        self._number = 0

    def close(self) -> None:
        """Logs are large and say nothing more."""
        if not self._options.keep:
            shutil.rmtree(self._folder)

    def _fits(self, case: Case) -> bool:
        return time.monotonic() + case.asks[-1].at_ns / 1e9 + START_AND_END_S < self.deadline

    def measure(self, case: Case) -> Round | None:
        """One round, or None when its canary fails."""
        self._number, self._rounds = self._number + 1, self._rounds + 1
        options = self._options
        found = measure(
            case, self._folder / f"{self._number}-{case.name}", self._canary, is_strict=not options.accept_busy
        )
        if isinstance(found, Verdict):
            print(f"{case.name}: given up; {found.told()}", flush=True)
            self._discarded += 1
            return None
        print(f"{case.name}: {found.verdict.told()}", flush=True)
        if found.verdict.passes or options.accept_busy:
            self._verdicts.append(found.verdict)
            return found
        self._discarded += 1
        return None

    def part(self, first: Case, cases: list[Case], is_synthetic: bool) -> truth_report.Part | None:
        """Calibrate, then measure and compare every case; those that failed again, in turn. None: not calibrated."""
        self._verdicts, self._rounds, self._discarded = [], 0, 0
        base = None
        while base is None and self._fits(first):
            base = self.measure(first)
        if base is None:
            return None
        known = calibrated(base, is_synthetic)
        print(f"calibration: {known.costs}", flush=True)
        found: dict[str, Comparison] = {}
        waiting = [case for case in cases if not self._options.only or case.name in self._options.only]
        while waiting := [case for case in waiting if self._fits(case)]:
            case = waiting.pop(0)
            there = self.measure(case)
            if there is None:
                waiting.append(case)
            else:
                self._compare(there, known, found)
        ordered = [found[case.name] for case in cases if case.name in found]
        return truth_report.Part(
            ordered, len(cases), known.costs, known.file, self._rounds, self._discarded, self._verdicts
        )

    def _compare(self, there: Round, known: Calibration, found: dict[str, Comparison]) -> None:
        if self._options.keep:
            print(f"  logs in {there.folder}")
        try:
            compared = found[there.case.name] = compare(there, known.costs, known.truth)
        except ConfigError as error:  # a step that the fit refuses to predict
            print(f"  not compared: {error}", flush=True)
        else:
            print(truth_report.line(compared), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("scheduler", "cost", "all"))
    parser.add_argument("--limit-s", type=float, default=660.0)
    parser.add_argument("--publish", action="store_true", help="write RESULTS.md and README.md")
    parser.add_argument(
        "--accept-busy", action="store_true", help="for trying out: failed canaries count; nothing is written"
    )
    parser.add_argument("--others-max", type=float, default=OTHERS, help="share of the machine that others may use")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--keep", action="store_true", help="keep the event logs")
    options = parser.parse_args()
    if options.accept_busy and options.publish:
        parser.error("--publish needs rounds whose canary passed: leave out --accept-busy")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and logs are cleared away
    run = Run(options)
    until = run.deadline
    try:
        for mode in ("scheduler", "cost") if options.mode == "all" else (options.mode,):
            is_first_of_two = options.mode == "all" and mode == "scheduler"  # the other one gets some time, whatever
            run.deadline = until - options.limit_s * COST_SHARE if is_first_of_two else until
            first, cases = scheduler_cases() if mode == "scheduler" else cost_cases()
            part = run.part(first, cases, mode == "scheduler")
            if part is None or not part.found:
                print(f"{mode}: no round passed its canary within the limit; nothing is said")
                continue
            text = truth_report.scheduler(part) if mode == "scheduler" else truth_report.cost(part)
            print(text)
            if options.publish:
                truth_report.publish(mode, text)
    finally:
        run.close()


if __name__ == "__main__":
    main()
