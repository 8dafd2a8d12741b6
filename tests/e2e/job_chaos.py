"""`headway serve` with durable jobs under kill -9 of gateway and workers at random moments, and what must hold then.

Every accepted job is completed exactly once, its video is the one that an undisturbed engine makes, and it is metered
and told once.
"""

import base64
import contextlib
import http.client
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy
from PIL import Image
from tests.e2e.serving import HEADWAY, Server, children, environment

from headway.core.plans import DenoisePlan, DenoiseRow, NewDenoise
from headway.core.request import DiffusionRequest
from headway.engines.synthetic.denoise import DenoiserParams, SyntheticDenoiser

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
VIDEOS = """
name = "wan"
engine = "synthetic"
replicas = 2
fps = 2
seconds = [4]
size = "32x32"
"""
PICTURES = """
name = "flux"
folder = "models/tiny/image"
replicas = 1
size = "64x64"
"""
CONFIG = """
[model]
replicas = 0
[[diffusion]]
{model}
steps = {steps}
synthetic = {{ step_ms = {step_ms} }}
[jobs]
url = "sqlite:///{folder}/jobs.db"
progress_s = 0.2
lease_s = 2.0
poll_s = 0.2
attempts_max = 1000
previews = 1
backoff = {{ first_s = 0.05, most_s = 0.5 }}
checkpoint = {{ failure_every_s = {failure_every_s} }}
hooks = {{ backoff = {{ first_s = 0.1, most_s = 0.5 }}, attempts_max = 100 }}
[jobs.webhooks]
allowed_networks = ["127.0.0.0/8"]
secrets = {{ "*" = "{secret}" }}
[supervisor]
restarts_max = 100000
restart_backoff_s = 0.02
restart_backoff_s_max = 0.1
"""
JSON = {"content-type": "application/json"}
OUTAGE_S = 90.0  # for what needs no torch
START_S = 300.0  # torch and diffusers are imported by every worker, on a machine with other work to do


class Storm(msgspec.Struct, frozen=True):
    """What is done to it. `gateway_share`: of the kills; the others meet a worker."""

    kills: int
    seed: int
    engine: Literal["synthetic", "torch"] = "synthetic"  # torch: pictures by the tiny model
    gateway_share: float = 0.4
    jobs_per_kill: int = 2
    steps: int = 16
    step_ms: float = 25.0
    pause_s: float = 1.0  # at most, before a kill
    end_share: float = 0.0  # of the kills; an orderly restart of the gateway goes before them
    failure_every_s: float = 1.0  # how often a job is saved follows from it


class Tally(msgspec.Struct):
    """What came of it."""

    accepted: int = 0
    lost: list[str] = []
    doubled: list[str] = []
    wrong: list[str] = []
    gateway_kills: int = 0
    worker_kills: int = 0
    gateway_ends: int = 0  # in order, and begun again
    attempts: int = 0
    resumed: int = 0  # jobs that were begun again from a checkpoint
    seconds: float = 0.0

    def check(self) -> None:
        """Nothing is lost, doubled or wrong."""
        assert (self.lost, self.doubled, self.wrong) == ([], [], [])
        assert self.accepted > 0


class Receiver:
    """Takes webhooks; counts which message told of which job."""

    def __init__(self) -> None:
        self.told: dict[str, set[str]] = {}
        told = self.told

        class Take(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                event = json.loads(self.rfile.read(int(self.headers["content-length"])))
                told.setdefault(event["data"]["id"], set()).add(self.headers["webhook-id"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()


class Site:
    """One gateway on its folder, which is started again after each of its deaths."""

    def __init__(self, folder: Path, storm: Storm) -> None:
        self.folder = folder
        self._config = folder / "headway.toml"
        self.is_torch = storm.engine == "torch"
        model = PICTURES if self.is_torch else VIDEOS
        text = CONFIG.format(
            folder=folder,
            secret=SECRET,
            steps=storm.steps,
            step_ms=storm.step_ms,
            failure_every_s=storm.failure_every_s,
            model=model,
        )
        if self.is_torch:
            text = text.replace(f"synthetic = {{ step_ms = {storm.step_ms} }}\n", "")
        self._config.write_text(text)
        self.server = self._start()

    def _start(self) -> Server:
        process = subprocess.Popen(
            [*HEADWAY, "serve", "--port", "0", "--config", str(self._config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        server = Server(process)
        assert server.ready.wait(START_S)
        return server

    def kill_gateway(self) -> None:
        """And bring it back."""
        workers = children(self.server)
        self.close()
        for pid in workers:  # they end by themselves; what is left of one must not compute beside its successor
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server = self._start()

    def close(self) -> None:
        """Kill what is left, and close its pipes."""
        process = self.server.process
        process.kill()
        self.server.end()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()

    def kill_worker(self, rng: random.Random) -> bool:
        """One of them; it is started again by its supervisor."""
        workers = children(self.server)
        if not workers:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(workers), signal.SIGKILL)
        return True

    def call(self, path: str, body: object | None = None, **headers: str) -> Any:  # JSON
        """One request; None while nobody answers well."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, {**JSON, **headers})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in (429, 502, 503):
                    raise AssertionError(f"{path}: {error.code} {error.read()!r}") from error
            return None
        except (OSError, ValueError, http.client.HTTPException):  # the last one: killed while it answered
            return None

    @property
    def outage_s(self) -> float:
        """Who is not back by then will never be."""
        return START_S if self.is_torch else OUTAGE_S

    @property
    def path(self) -> str:
        """Where jobs are made."""
        return "/v1/images/generations" if self.is_torch else "/v1/videos"

    def view(self, job: str) -> Any:  # JSON
        """As its client sees it; None while nobody answers well."""
        return self.call(f"/v1/{'images' if self.is_torch else 'videos'}/{job}")

    def body(self, key: str, number: int) -> dict[str, object]:
        """What the order `key` asks for."""
        if self.is_torch:
            colour = ("red", "blue", "green", "yellow")[number % 4]
            prompt = f"a large {colour} circle on a white background"
            return {"model": "flux", "prompt": prompt, "seed": number, "response_format": "b64_json"}
        return {"model": "wan", "prompt": f"cat {key}", "seconds": "4", "seed": number}

    def restart(self) -> None:
        """In order."""
        self.stop()
        self.close()
        self.server = self._start()

    def stop(self) -> None:
        """In order."""
        self.server.process.send_signal(signal.SIGINT)
        assert self.server.end(60.0) == 0, self.server.errors[-20:]


@contextlib.contextmanager
def site(folder: Path, storm: Storm) -> Iterator[Site]:
    """Leaves no process behind."""
    running = Site(folder, storm)
    try:
        yield running
    finally:
        running.close()


def ride(folder: Path, storm: Storm) -> Tally:
    """Let the storm pass over a site, wait until every job is over, and count."""
    rng, tally, receiver = random.Random(storm.seed), Tally(), Receiver()
    began = time.monotonic()
    with site(folder, storm) as running:
        orders: dict[str, str | None] = {}  # idempotency key -> job, once the gateway said so
        for kill in range(storm.kills):
            for number in range(storm.jobs_per_kill):
                orders[f"key-{kill}-{number}"] = None
            threads = threading.Thread(target=_order, args=(running, orders, receiver.url))
            threads.start()  # beside the kill: an answer may be lost on its way
            time.sleep(rng.uniform(0.05, storm.pause_s))
            if storm.end_share and rng.random() < storm.end_share:
                running.restart()
                tally.gateway_ends += 1
            if rng.random() < storm.gateway_share:
                running.kill_gateway()
                tally.gateway_kills += 1
            elif running.kill_worker(rng):
                tally.worker_kills += 1
            threads.join()
        deadline = time.monotonic() + running.outage_s
        while None in orders.values():
            _order(running, orders, receiver.url)
            assert time.monotonic() < deadline, "jobs are not accepted any more"
        _wait(running, [job for job in orders.values() if job is not None], receiver)
        if running.is_torch:
            tally.wrong = _other_pictures(running, orders)
        running.stop()
        _count(folder, orders, receiver, tally)
    receiver.close()
    tally.seconds = round(time.monotonic() - began, 1)
    return tally


def _order(running: Site, orders: dict[str, str | None], hook: str) -> None:
    """Send what has no answer yet, under its key: the same one however often it is sent."""
    for number, (key, job) in enumerate(list(orders.items())):
        if job is None:
            body = {**running.body(key, number), "webhook_url": hook}
            headers = {"idempotency-key": key, **({"prefer": "respond-async"} if running.is_torch else {})}
            answer = running.call(running.path, body, **headers)
            if answer is not None:
                orders[key] = answer["id"]


def _wait(running: Site, jobs: list[str], receiver: Receiver) -> None:
    deadline = time.monotonic() + running.outage_s + len(jobs)
    left = jobs
    while left:
        assert time.monotonic() < deadline, f"not over: {[running.view(job) for job in left[:3]]}"
        views = {job: running.view(job) for job in left}
        left = [job for job, view in views.items() if view is None or view["status"] in ("queued", "in_progress")]
        left = left or [job for job in jobs if job not in receiver.told]
        time.sleep(0.1)


def _count(folder: Path, orders: dict[str, str | None], receiver: Receiver, tally: Tally) -> None:
    """What the table, the store and the receiver say, now that nobody writes any more."""
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as table:
        rows = {row[0]: row[1:] for row in table.execute("SELECT id, state, attempt, begun FROM jobs WHERE attempt")}
        kept = table.execute("SELECT count(*) FROM jobs WHERE NOT attempt").fetchone()[0]  # of synchronous answers
        bodies = dict(table.execute("SELECT job, body FROM job_inputs"))
        keys = dict(table.execute("SELECT job, key FROM job_outputs WHERE kind = 'video'"))
        hooks = dict(table.execute("SELECT job, count(*) FROM hooks GROUP BY job"))
        metered = table.execute("SELECT sum(requests) FROM usage").fetchone()[0] - kept
    tally.accepted = len(orders)
    tally.lost = [
        f"{job}: {rows.get(job or '')}" for job in orders.values() if rows.get(job or "", "?")[0] != "completed"
    ]
    tally.doubled = [job for job, count in hooks.items() if count != 1 or len(receiver.told[job]) != 1]
    if len(rows) != len(orders) or metered != len(orders) or len(set(orders.values())) != len(orders):
        tally.doubled.append(f"{len(orders)} orders made {len(rows)} jobs, metered {metered} times")
    for job, (_, attempt, begun) in rows.items():
        tally.attempts += attempt
        tally.resumed += bool(attempt > 1 and begun)
        if job in keys and (folder / "objects" / keys[job]).read_bytes() != undisturbed(bodies[job]):
            tally.wrong.append(job)


def _other_pictures(running: Site, orders: dict[str, str | None]) -> list[str]:
    """Jobs whose picture is not what the same request gives now, alone; 1/255 is what a batch may change."""
    wrong = []
    for number, (key, job) in enumerate(orders.items()):
        alone = running.call(running.path, running.body(key, number))
        made = running.view(job or "")
        first, second = (
            numpy.asarray(Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))).convert("RGB"), int)
            for answer in (alone, made)
        )
        if abs(first - second).max() > 1:
            wrong.append(f"{job}: {abs(first - second).max()}")
    return wrong


def undisturbed(body: bytes) -> bytes:
    """The video that this request gives alone, in one go."""
    request = msgspec.msgpack.decode(body, type=DiffusionRequest)
    denoiser = SyntheticDenoiser(DenoiserParams(step_ns=0, pixel_ns=0.0))
    row = DenoiseRow(1, 0, request.steps, request.steps)
    plan = DenoisePlan(1, 0, (row,), request.height, request.width, new=(NewDenoise(1, request),))
    return denoiser.run(plan).made[0].made[-1].body
