"""Serves on a free port, runs the black-box checks beside the checkout, stops the server, and says what failed.

Once with this tree and two tenants, once with a wheel of it in an empty folder. Exit code 0 when everything passed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.scratch_env import build_wheel, make_env  # noqa: E402

FIRST_KEY, OTHER_KEY = "sk-test", "sk-acceptance-other"
CHECKS = {"llm_api.py": {"text"}, "diffusion_api.py": {"image", "video"}}
PARTS = {"diffusion_api.py": {"image": "image:"}}  # what applies to a server that has one kind only
SERVING_PACKAGES = ("torch", "safetensors")
READY_S, STOP_S, CHECK_S = 180.0, 30.0, 900.0
PROGRESS_S = 10.0


class Failure(Exception):
    """Something that has to hold does not; the message says what was seen."""


def say(text: str) -> None:
    """Print one progress line."""
    print(f"[acceptance] {text}", flush=True)


def two_tenants() -> str:
    """Return a configuration with two tenants; requests without a key are the first one's."""
    lines = ["[auth]", 'anonymous = "default"']
    for key, tenant in ((FIRST_KEY, "default"), (OTHER_KEY, "other")):
        digest = hashlib.sha256(key.encode()).hexdigest()
        lines += ["", "[[auth.keys]]", f'hash = "sha256:{digest}"', f'tenant = "{tenant}"']
    return "\n".join(lines) + "\n"


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(url: str, body: dict[str, object] | None = None) -> tuple[int, bytes]:
    """Return status and body; 0 where nothing answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


def own_environment(state: Path) -> dict[str, str]:
    """Return the environment without what would point Python at another tree, and with a folder for jobs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "HEADWAY_STATE": str(state)}


def wait_ready(base: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when `/ready` says 200; raise Failure when the process ends or the time is up."""
    started = time.monotonic()
    told = started
    while True:
        status, body = fetch(f"{base}/ready")
        now = time.monotonic()
        if status == 200:
            say(f"ready after {now - started:.1f} s")
            return
        if process.poll() is not None:
            raise Failure(f"the server ended with {process.returncode} before it was ready:\n{tail(log)}")
        if now - started > READY_S:
            raise Failure(f"not ready after {READY_S:.0f} s; /ready said {status} {body[:200]!r}:\n{tail(log)}")
        if now - told > PROGRESS_S:
            told = now
            say(f"  ... waiting for /ready ({now - started:.0f} s), it says {status or 'nothing'}")
        time.sleep(0.1)


def tail(log: Path, lines: int = 40) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def serving(command: Sequence[str], folder: Path) -> Iterator[str]:
    """Run a server for the time of the block; it has to stop cleanly on SIGTERM. Yields its base URL."""
    port = free_port()
    log = folder / "serve.log"
    line = [*command, "--port", str(port)]
    say(" ".join(line))
    with log.open("wb") as sink:
        process = subprocess.Popen(
            line,
            cwd=folder,
            env=own_environment(folder / "state"),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    try:
        base = f"http://127.0.0.1:{port}"
        wait_ready(base, process, log)
        yield base
        if process.poll() is not None:
            raise Failure(f"the server ended by itself with {process.returncode}:\n{tail(log)}")
        stop(process, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def stop(process: subprocess.Popen[bytes], log: Path) -> None:
    """Ask the server to stop; raise Failure when it does not, or not with exit code 0."""
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired as error:
        raise Failure(f"still running {STOP_S:.0f} s after SIGTERM:\n{tail(log)}") from error
    if code != 0:
        raise Failure(f"exit code {code} after SIGTERM:\n{tail(log)}")
    if "Traceback (most recent call last)" in log.read_text(errors="replace"):
        raise Failure(f"the server printed a traceback:\n{tail(log)}")
    say(f"stopped cleanly in {time.monotonic() - started:.1f} s")


def modalities(base: str) -> set[str]:
    """Return what the models of a server can do."""
    status, body = fetch(f"{base}/v1/models")
    if status != 200:
        raise Failure(f"/v1/models answered {status}: {body[:200]!r}")
    return {kind for model in json.loads(body)["data"] for kind in model["modalities"]}


def talk(base: str) -> None:
    """Ask the first model one question; raise Failure unless it answers with text."""
    _, body = fetch(f"{base}/v1/models")
    model = json.loads(body)["data"][0]["id"]
    question = {"role": "user", "content": "What is the capital of France?"}
    ask: dict[str, object] = {"model": model, "messages": [question], "max_tokens": 16, "temperature": 0}
    status, body = fetch(f"{base}/v1/chat/completions", ask)
    text = json.loads(body)["choices"][0]["message"]["content"] if status == 200 else ""
    if not text:
        raise Failure(f"/v1/chat/completions answered {status}: {body[:200]!r}")
    say(f"{model} says: {text.strip()!r}")


def run_checks(checks: Path, base: str, only: str | None) -> list[str]:
    """Run the scripts that apply to what the server can do; return what failed."""
    if not checks.is_dir():
        say(f"skip: no folder {os.path.relpath(checks, ROOT)} beside this checkout")
        return []
    able = modalities(base)
    failed = []
    for script, needs in CHECKS.items():
        part = only
        if not needs <= able:
            lacking = " and ".join(sorted(needs - able))
            part = next((name for kind, name in PARTS.get(script, {}).items() if kind in able), None)
            if part is None or only:
                say(f"skip {script}: no model here is listed for {lacking}")
                continue
            say(f"of {script} only what is called {part!r}: no model here is listed for {lacking}")
        say(f"running {script}")
        command = [sys.executable, str(checks / script), "--base-url", base, "--other-key", OTHER_KEY]
        command += ["--only", part] if part else []
        try:
            code = subprocess.run(command, timeout=CHECK_S, check=False).returncode
        except subprocess.TimeoutExpired:
            failed.append(f"{script} had not ended after {CHECK_S:.0f} s")
        else:
            failed += [f"{script} ended with {code}"] if code else []
    return failed


def check_tree(folder: Path, checks: Path, only: str | None) -> list[str]:
    """Serve this tree with two tenants, talk to it, run the checks."""
    config = folder / "headway.toml"
    config.write_text(two_tenants())
    headway = str(Path(sys.executable).with_name("headway"))
    with serving([headway, "serve", "--config", str(config)], folder) as base:
        talk(base)
        return run_checks(checks, base, only)


def check_wheel(folder: Path) -> None:
    """Serve a wheel of the tree from an empty folder, without a configuration."""
    say("building a wheel")
    tools = make_env(folder / "env", build_wheel(folder), SERVING_PACKAGES)
    empty = folder / "empty"
    empty.mkdir()
    with serving([str(tools / "headway"), "serve"], empty) as base:
        talk(base)


def main(argv: Sequence[str] | None = None) -> int:
    """Run both parts; print what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checks", type=Path, default=ROOT.parent / "shared" / "checks", help="folder of the checks")
    parser.add_argument("--only", help="run the checks whose name contains this")
    parser.add_argument("--no-wheel", action="store_true", help="leave the wheel out")
    options = parser.parse_args(argv)
    started = time.monotonic()
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="headway-acceptance-") as scratch:
        for name in ["tree"] if options.no_wheel else ["tree", "wheel"]:
            folder = Path(scratch) / name
            folder.mkdir()
            try:
                if name == "tree":
                    failed += [f"{name}: {line}" for line in check_tree(folder, options.checks, options.only)]
                else:
                    check_wheel(folder)
            except Failure as error:
                failed.append(f"{name}: {error}")
    for line in failed:
        say(f"FAILED {line}")
    say(f"{'failed' if failed else 'passed'} after {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
