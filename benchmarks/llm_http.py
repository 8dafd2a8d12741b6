"""Tokens per second through HTTP against the same engine offline, in one run: does the gateway starve the engine?

usage: PYTHONPATH=src python benchmarks/llm_http.py [--threads N ...] [--rounds 3] [--streams 1 8 32] [--others-max S]
       [--beside SHARE]

`headway serve` with its defaults but for `engine.threads`, asked by as many streams as there are requests, and
the child of llm_engine.py (the same scheduler and engine in one thread, no sockets) run the same batch in turn: prompts
of 64 random tokens, 48 tokens of output each, all at once. The rate is output tokens by the time from the first
request to the last token. The client runs on the same cores: one thread that reads every byte of every stream as it
comes, and afterwards counts the events of each. Beside the ratio stands the CPU time per output token of each side and
of the client, which holds on a busy machine too; rounds in which the machine was not ours are discarded and counted.

`--beside` runs the batch offline once more beside a process that takes that share of a core in slices of a millisecond,
as a gateway does: what two engine threads on two cores lose to any such neighbour.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from llm_engine import Cell, Child
from truth_canary import Canary, ticks, tree

from headway.adapters.http1.chunks import payload_of
from headway.adapters.models import resolve

HERE = Path(__file__).parent
PROMPT, OUTPUT = 64, 48
READY_S = 400.0
TICK_MS = 1e3 / os.sysconf("SC_CLK_TCK")
SLICE_S = 1e-3
LAST = b"\r\n0\r\n\r\n"
NEIGHBOUR = """
import time
share, slice_s = {share}, {slice_s}
while True:
    until = time.thread_time() + slice_s
    while time.thread_time() < until:
        pass
    time.sleep(slice_s * (1 - share) / share)
"""


class Rate(NamedTuple):
    tokens_per_s: float
    cpu_ms: float  # per output token, of the engine's process and, through HTTP, of the gateway too
    client_ms: float = 0.0  # per output token, of who reads the streams


class Round(NamedTuple):
    passes: bool
    alone: Rate
    there: Rate
    crowded: Rate | None  # offline, with a neighbour


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
        sockets = [socket.create_connection(("127.0.0.1", self._port), READY_S) for _ in range(streams)]
        asked = [self._request() for _ in range(streams)]
        before, mine = ticks(tree(self._process.pid)), time.thread_time()
        began = time.perf_counter()
        for sock, request in zip(sockets, asked, strict=True):
            sock.sendall(request)
        answers = read(sockets)
        took, client = time.perf_counter() - began, time.thread_time() - mine
        cpu = ticks(tree(self._process.pid)) - before
        for answer in answers:
            check(answer)
        tokens = streams * OUTPUT
        return Rate(tokens / took, cpu * TICK_MS / tokens, client * 1e3 / tokens)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def _request(self) -> bytes:
        body = {
            "model": self._model,
            "prompt": [random.randint(100, 40_000) for _ in range(PROMPT)],
            "max_tokens": OUTPUT,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        raw = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw

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


def read(sockets: list[socket.socket]) -> list[bytes]:
    """What each sends until its answer's last chunk or the connection's end."""
    came = {sock: bytearray() for sock in sockets}
    with selectors.DefaultSelector() as selector:
        for sock in sockets:
            selector.register(sock, selectors.EVENT_READ, came[sock])
        while selector.get_map():
            for key, _ in selector.select():
                part = key.fileobj.recv(65536)
                key.data.extend(part)
                if not part or key.data.endswith(LAST):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
    return [bytes(raw) for raw in came.values()]


def check(answer: bytes) -> None:
    """Every token came in an event of its own, and the stream has its end."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200") or not body.endswith(LAST):
        raise SystemExit(f"a stream failed: {answer[:300]!r} ... {answer[-300:]!r}")
    events = [
        json.loads(line[6:])
        for line in payload_of(body[: -len(LAST) + 2]).split(b"\n\n")
        if line.startswith(b"data: {")
    ]
    tokens = sum(1 for event in events if event["choices"][0]["finish_reason"] is None)
    # Text held back for want of its last byte comes in one event more, at the end.
    if (
        tokens not in (OUTPUT, OUTPUT + 1)
        or events[-1]["choices"][0]["finish_reason"] != "length"
        or b"[DONE]" not in body[-40:]
    ):
        raise SystemExit(f"a stream has {tokens} tokens of {OUTPUT}: ... {answer[-300:]!r}")


@contextlib.contextmanager
def neighbour(share: float) -> Iterator[None]:
    """A process that takes `share` of a core meanwhile; none for 0."""
    if not share:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR.format(share=share, slice_s=SLICE_S)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def offline(child: Child, streams: int) -> Rate:
    """The child's phases, put together again."""
    found = child.ask(concurrent=streams, prompt=PROMPT, steps=OUTPUT - 1)
    took, cpu = (found[f"prefill_{name}"] + found[f"decode_{name}"] for name in ("wall", "cpu"))
    return Rate(streams * OUTPUT / took, cpu * 1e3 / (streams * OUTPUT))


def compare(given: argparse.Namespace, threads: int, canary: Canary) -> None:
    command = [sys.executable, str(HERE / "llm_engine_child.py"), "headway", str(resolve().folder)]
    child = Child("offline", [*command, "--threads", str(threads)], {"OMP_NUM_THREADS": str(threads)})
    kept: dict[int, list[Round]] = {streams: [] for streams in given.streams}
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
                    with neighbour(given.beside):  # beside the canary's end too, which counts what lives as ours
                        crowded = offline(child, streams) if given.beside else None
                        verdict = canary.stop()
                    rows.append(Round(verdict.passes, alone, there, crowded))
                    print(
                        f"{streams} stream(s), {there.tokens_per_s / alone.tokens_per_s:.2f}: {verdict.told()}",
                        flush=True,
                    )
        finally:
            server.stop()
            child.stop()
    show(threads, kept, given.beside)


def show(threads: int, kept: dict[int, list[Round]], share: float) -> None:
    heads = ["offline tokens/s", "HTTP tokens/s", "ratio", "offline CPU ms/token", "HTTP CPU ms/token", "client"]
    heads += [f"offline beside {share:.0%}"] * bool(share) + ["rounds kept"]
    print(f"\n| streams, {threads} engine thread(s) | " + " | ".join(heads) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for streams, rows in kept.items():
        quiet = [row for row in rows if row.passes]
        used = quiet or rows
        figures = [
            f"{statistics.median(row.alone.tokens_per_s for row in used):.0f}",
            f"{statistics.median(row.there.tokens_per_s for row in used):.0f}",
            f"{statistics.median(row.there.tokens_per_s / row.alone.tokens_per_s for row in used):.2f}",
            f"{statistics.median(row.alone.cpu_ms for row in used):.2f}",
            f"{statistics.median(row.there.cpu_ms for row in used):.2f}",
            f"{statistics.median(row.there.client_ms for row in used):.3f}",
        ]
        if share:
            rates = [row.crowded.tokens_per_s / row.alone.tokens_per_s for row in used if row.crowded is not None]
            figures.append(f"{statistics.median(rates):.2f}")
        figures.append(f"{len(quiet)} of {len(rows)}")
        brackets = "({})" if not quiet else "{}"
        print(f"| {streams} | " + " | ".join(brackets.format(figure) for figure in figures) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--others-max", type=float, default=0.06, help="share of the cores that others may take")
    parser.add_argument("--beside", type=float, default=0.0, help="share of a core of a neighbour, once more offline")
    given = parser.parse_args()
    canary = Canary(given.others_max)
    for threads in given.threads:
        compare(given, threads, canary)
    print(f"\nload {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
