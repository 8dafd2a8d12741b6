"""Runs `headway serve` as an operator does, and talks to it with the standard library."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import headway

SOURCE = Path(headway.__file__).parent.parent
HEADWAY = [sys.executable, "-c", "from headway.cli import main; main()"]
READY_S = 120.0


def environment(**more: str) -> dict[str, str]:
    """The environment of a command: this tree, few threads, no hub."""
    path = os.pathsep.join(part for part in (more.pop("PYTHONPATH", ""), str(SOURCE)) if part)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


class Server:
    """One running `headway serve`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.out: list[str] = []
        self.errors: list[str] = []
        self.ready = threading.Event()
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout, self.out), daemon=True),
            threading.Thread(target=self._read, args=(process.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Iterable[str], lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))
            if line.startswith("ready: "):
                self.ready.set()
        if lines is self.out:
            self.ready.set()  # the end: nobody waits longer

    @property
    def url(self) -> str:
        """Its address, from the ready line."""
        assert self.out, f"it never got ready: {self.errors}"
        return self.out[0].split()[1]

    def end(self, timeout_s: float = 30.0) -> int:
        """Wait for its end and all it printed."""
        code = self.process.wait(timeout=timeout_s)
        for reader in self._readers:
            reader.join(timeout=10)
        return code

    def call(self, path: str, body: object | None = None) -> tuple[int, bytes]:
        """One request; status and body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def accounts(self) -> list[dict[str, Any]]:  # JSON
        """The ledger."""
        accounts: list[dict[str, Any]] = json.loads(self.call("/v1/ledger")[1])["accounts"]  # JSON
        return accounts

    def held(self) -> dict[str, int]:
        """What must be nothing after idle: all of a level that is no cache, and what a meter reserves."""
        held = {}
        for account in self.accounts():
            used = account["used"] if account["kind"] == "level" and not account["cache"] else 0
            held[account["name"]] = account["reserved"] + used
        return {name: amount for name, amount in held.items() if amount}


def children(server: Server) -> list[int]:
    """The replica processes, oldest first."""
    folder = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(pid) for pid in folder.read_text().split()]


def is_alive(pid: int) -> bool:
    """False also for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(claim: Callable[[], bool], what: Callable[[], str] | str, timeout_s: float = 30.0) -> None:
    """Wait for a claim to come true. Raises AssertionError with `what` when it does not."""
    deadline = time.monotonic() + timeout_s
    while not claim():
        said = what if isinstance(what, str) else what()
        assert time.monotonic() < deadline, f"never: {said}"
        time.sleep(0.01)


@contextlib.contextmanager
def serve(*arguments: str, wait: bool = True, **more: str) -> Iterator[Server]:
    """Start, wait for the ready line (or the end), and leave nothing behind."""
    process = subprocess.Popen(
        [*HEADWAY, "serve", *(() if "--port" in arguments else ("--port", "0")), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**more),
    )
    server = Server(process)
    try:
        assert not wait or server.ready.wait(READY_S), f"not ready: {server.errors}"
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        server.end()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
