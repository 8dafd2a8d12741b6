"""Tokens per second through HTTP against the same engine offline, in one run: does the gateway starve the engine?

usage: PYTHONPATH=src python benchmarks/llm_http.py [--threads N ...] [--rounds 3] [--streams 1 8 32] [--others-max S]

`headway serve` with its defaults but for `engine.threads`, asked by as many streams as there are requests, and
the child of llm_engine.py (the same scheduler and engine in one thread, no sockets) run the same batch in turn: prompts
of 64 random tokens, 48 tokens of output each, all at once. The rate is output tokens by the time from the first
request to the last token. The client runs on the same cores. Beside the ratio stands the CPU time per output token of
each side, which holds on a busy machine too; rounds in which the machine was not ours are discarded and counted.
"""

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from llm_engine import Cell, Child
from truth_canary import Canary, ticks, tree

from headway.adapters.models import resolve

HERE = Path(__file__).parent
PROMPT, OUTPUT = 64, 48
READY_S = 400.0
TICK_MS = 1e3 / os.sysconf("SC_CLK_TCK")


class Rate(NamedTuple):
    tokens_per_s: float
    cpu_ms: float  # per output token, of the engine's process and, through HTTP, of the gateway too


class Server:
    """`headway serve` on a free port."""

    def __init__(self, threads: int, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        config = folder / "serve.toml"
        lines = f"[server]\nport = {self._port}\n[model]\nreplicas = 1\n[engine]\nthreads = {threads}\n"
        config.write_text(lines, encoding="utf-8")  # a model is named, so that no tiny picture model starts beside it
        self._log = (folder / "serve.log").open("wb")
        command = [sys.executable, "-c", "from headway.cli import main; main()", "serve", "--config", str(config)]
        # Its engine sets its own number of threads; ours may have been started with another.
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=environment)
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise SystemExit(f"headway serve is not ready: {(folder / 'serve.log').read_text()[-1500:]}")
            time.sleep(0.3)
        self._model = json.loads(self._get("/v1/models"))["data"][0]["id"]

    def run(self, streams: int) -> Rate:
        ready, left = threading.Barrier(streams + 1), []
        clients = [threading.Thread(target=self._stream, args=(ready, left)) for _ in range(streams)]
        for client in clients:
            client.start()
        before = ticks(tree(self._process.pid))
        ready.wait()
        began = time.perf_counter()
        for client in clients:
            client.join()
        took, cpu = time.perf_counter() - began, ticks(tree(self._process.pid)) - before
        if len(left) != streams:
            raise SystemExit(f"{streams - len(left)} of {streams} streams failed")
        return Rate(streams * OUTPUT / took, cpu * TICK_MS / (streams * OUTPUT))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def _stream(self, ready: threading.Barrier, left: list[int]) -> None:
        body = {
            "model": self._model,
            "prompt": [random.randint(100, 40_000) for _ in range(PROMPT)],
            "max_tokens": OUTPUT,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=READY_S)
        connection.connect()
        ready.wait()
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse().read()
        if answer.rstrip().endswith(b"[DONE]"):
            left.append(1)

    def _get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OSError(f"{path} answers {answer.status}")
        return body

    def _answers(self) -> bool:
        try:
            self._get("/ready")
        except OSError:
            return False
        return True


def offline(child: Child, streams: int) -> Rate:
    """The child's phases, put together again."""
    found = child.ask(concurrent=streams, prompt=PROMPT, steps=OUTPUT - 1)
    took, cpu = (found[f"prefill_{name}"] + found[f"decode_{name}"] for name in ("wall", "cpu"))
    return Rate(streams * OUTPUT / took, cpu * 1e3 / (streams * OUTPUT))


def compare(given: argparse.Namespace, threads: int, canary: Canary) -> None:
    command = [sys.executable, str(HERE / "llm_engine_child.py"), "headway", str(resolve().folder)]
    child = Child("offline", [*command, "--threads", str(threads)], {"OMP_NUM_THREADS": str(threads)})
    kept: dict[int, list[tuple[bool, Rate, Rate]]] = {streams: [] for streams in given.streams}
    with tempfile.TemporaryDirectory() as folder:
        server = Server(threads, Path(folder))
        try:
            child.started()
            child.cell(Cell(2, 32, 2))
            server.run(2)
            for number in range(given.rounds):
                for streams, rows in kept.items():
                    canary.start()
                    if number % 2:
                        there = server.run(streams)
                        alone = offline(child, streams)
                    else:
                        alone = offline(child, streams)
                        there = server.run(streams)
                    verdict = canary.stop()
                    rows.append((verdict.passes, alone, there))
                    print(
                        f"{streams} stream(s), {there.tokens_per_s / alone.tokens_per_s:.2f}: {verdict.told()}",
                        flush=True,
                    )
        finally:
            server.stop()
            child.stop()
    show(threads, kept)


def show(threads: int, kept: dict[int, list[tuple[bool, Rate, Rate]]]) -> None:
    heads = ("offline tokens/s", "HTTP tokens/s", "ratio", "offline CPU ms/token", "HTTP CPU ms/token", "rounds kept")
    print(f"\n| streams, {threads} engine thread(s) | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for streams, rows in kept.items():
        quiet = [row for row in rows if row[0]]
        used = quiet or rows
        alone, there = ([row[place] for row in used] for place in (1, 2))
        figures = (
            f"{statistics.median(rate.tokens_per_s for rate in alone):.0f}",
            f"{statistics.median(rate.tokens_per_s for rate in there):.0f}",
            f"{statistics.median(b.tokens_per_s / a.tokens_per_s for a, b in zip(alone, there, strict=True)):.2f}",
            f"{statistics.median(rate.cpu_ms for rate in alone):.2f}",
            f"{statistics.median(rate.cpu_ms for rate in there):.2f}",
            f"{len(quiet)} of {len(rows)}",
        )
        brackets = "({})" if not quiet else "{}"
        print(f"| {streams} | " + " | ".join(brackets.format(figure) for figure in figures) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--others-max", type=float, default=0.06, help="share of the cores that others may take")
    given = parser.parse_args()
    canary = Canary(given.others_max)
    for threads in given.threads:
        compare(given, threads, canary)
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
