"""llama.cpp for `llm_engine.py`: its batched benchmark, and its server, where one can arrive while others decode."""

import json
import os
import random
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from llm_engine_cells import NEWCOMER, Cell

DECODING = 256  # tokens that each of those who decode asks for, as in llm_engine_child.py
PATIENCE_S = 120  # for the server to start, and to take what it is sent


class Stream:
    """One prompt of random tokens; when its tokens came."""

    def __init__(self, port: int, prompt: int, tokens: int) -> None:
        asked = {
            "prompt": [random.randint(100, 40_000) for _ in range(prompt)],
            "n_predict": tokens,
            "stream": True,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        body = json.dumps(asked).encode()
        fields = ("POST /completion HTTP/1.1", "Host: llama", "Connection: close", f"Content-Length: {len(body)}")
        self.came: list[float] = []
        self.has_token, self._read = threading.Event(), bytearray()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall("\r\n".join((*fields, "", "")).encode() + body)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def wait(self) -> float:
        """When the first token came."""
        self.has_token.wait()
        if not self.came:
            raise SystemExit(f"llama-server ended a stream before its first token: {self._read[-500:].decode()}")
        return self.came[0]

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"data: "):
                    self.came.append(time.perf_counter())
                    self.has_token.set()
                else:
                    self._read += line
        self.has_token.set()


class LlamaServer:
    """`llama-server` with a slot for everybody and room for their tokens; no cache of prompts."""

    def __init__(self, folder: Path, gguf: Path, threads: int, slots: int, room: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        sizes = ["-t", threads, "-tb", threads, "-np", slots, "-c", slots * room, "-ngl", 0, "--cache-ram", 0]
        command = [str(folder / "llama-server"), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(self._port)]
        self._log = tempfile.NamedTemporaryFile(prefix="llama-server-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, *map(str, sizes), "--no-webui"],
            env={**os.environ, "LD_LIBRARY_PATH": str(folder), "OMP_NUM_THREADS": str(threads)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._until(lambda: self._get("/health").startswith(b"HTTP/1.1 200"))

    def newcomer(self, concurrent: int, prompt: int, arriving: int) -> dict[str, float]:
        """Seconds, as llm_engine_child.py answers them; the client's part of the wall time is in them."""
        others = [Stream(self._port, prompt, DECODING) for _ in range(concurrent)]
        for stream in others:
            stream.wait()
        began, cpu = time.perf_counter(), self._cpu_s()
        mine = Stream(self._port, arriving, 8)
        first = mine.wait()
        used = self._cpu_s() - cpu
        seen = [at for at in others[0].came if began <= at <= first]
        waits = [later - earlier for earlier, later in zip([began, *seen], [*seen, first], strict=True)]
        for stream in (*others, mine):
            stream.close()
        self._until(lambda: b'"is_processing":true' not in self._get("/slots"))  # who was cut off computes no more
        return {"ttft_cpu": used, "ttft_wall": first - began, "wait_wall": max(waits)}

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _cpu_s(self) -> float:
        words = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _get(self, path: str) -> bytes:
        try:
            with socket.create_connection(("127.0.0.1", self._port)) as connection:
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: llama\r\nConnection: close\r\n\r\n".encode())
                with connection.makefile("rb") as answer:
                    return answer.read()
        except ConnectionError:
            return b""

    def _until(self, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > ends:
                raise SystemExit(
                    f"llama-server did nothing for {PATIENCE_S} s: {Path(self._log.name).read_text()[-1500:]}"
                )
            if self._process.poll() is not None:
                raise SystemExit(f"llama-server died: {Path(self._log.name).read_text()[-1500:]}")
            time.sleep(0.05)


class LlamaCpp:
    """`llama-batched-bench`, a process per cell, and `llama-server` for the newcomer."""

    def __init__(self, folder: Path, gguf: Path, threads: int) -> None:
        self._given = (folder, gguf, threads)
        self.name = f"llama.cpp {gguf.stem.rpartition('-')[2]}"
        self._base = [str(folder / "llama-batched-bench"), "-m", str(gguf), "-t", str(threads), "-tb", str(threads)]
        self._environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "OMP_NUM_THREADS": str(threads)}

    def started(self) -> None:
        self._run(Cell(1, 1, 1))  # reads the file once

    def cell(self, cell: Cell) -> dict[str, float]:
        """CPU time of the cell's process without that of one which loads, warms up and stops, run right before it."""
        loading, _ = self._run(Cell(1, 1, 1))
        cpu, row = self._run(cell)
        prompt, output = cell.concurrent * cell.prompt, cell.concurrent * cell.steps
        per_s = (cpu - loading) / (row["t_pp"] + row["t_tg"])
        if per_s <= 0:
            raise SystemExit(f"{self.name}: {cpu:.2f} CPU s in all, {loading:.2f} to load: no time left to divide by")
        return {
            "decode": output / (row["t_tg"] * per_s),
            "decode_wall": output / row["t_tg"],
            "prefill": prompt / (row["t_pp"] * per_s),
            "prefill_wall": prompt / row["t_pp"],
        }

    def newcomer(self) -> dict[str, float]:
        concurrent, prompt, arriving = NEWCOMER
        server = LlamaServer(*self._given, slots=concurrent + 1, room=arriving + 512)
        try:
            server.newcomer(1, 32, 32)
            found = server.newcomer(concurrent, prompt, arriving)
        finally:
            server.stop()
        return {"ttft": found["ttft_cpu"], "ttft_wall": found["ttft_wall"], "wait_wall": found["wait_wall"]}

    def stop(self) -> None:
        """It does not stay."""

    def _run(self, cell: Cell) -> tuple[float, dict[str, float]]:
        room = max(512, cell.concurrent * (cell.prompt + cell.steps + 8))  # it warms up with tokens of its own
        sizes = ["-npp", cell.prompt, "-ntg", cell.steps, "-npl", cell.concurrent, "-c", room, "-ngl", 0]
        command = [*self._base, *map(str, sizes), "--output-format", "jsonl"]
        before = os.times()
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        after = os.times()
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not rows:
            raise SystemExit(f"{' '.join(command)} failed: {done.stderr[-1500:]}")
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        return cpu, rows[-1]
