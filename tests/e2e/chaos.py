"""A fleet of real processes under load while things go wrong: own engines and upstream servers behind one gateway.

Every request is checked: its text against what an undisturbed fleet says, its end against what a client may see.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from tests import upstream_server
from tests.e2e.serving import Server, children, serve, until
from tests.e2e.wire import Answer, call
from tests.upstream_server import Script, conversation_of, words

CHAT = "/v1/chat/completions"
OWN, RELAYED = "synthetic", "model-a"
SCRIPT = Script(kind="vllm", models=(RELAYED,), tokens=12, token_ms=8.0, max_seqs=32)
OUTAGE_S = 45.0  # a fleet that does not serve again by then never will


class Tally(msgspec.Struct):
    """How requests ended. `lost`: no end that a client could tell; `wrong`: text that nobody should have said."""

    sent: int = 0
    answered: int = 0
    failed: dict[str, int] = {}  # cleanly, by error code
    lost: list[str] = []
    wrong: list[str] = []

    def add(self, other: "Tally") -> None:
        """Sum up."""
        self.sent, self.answered = self.sent + other.sent, self.answered + other.answered
        for code, count in other.failed.items():
            self.failed[code] = self.failed.get(code, 0) + count
        self.lost += other.lost
        self.wrong += other.wrong

    @property
    def failures(self) -> int:
        """Requests that failed cleanly."""
        return sum(self.failed.values())

    def check(self) -> None:
        """Nothing is lost, nothing is wrong, everything is counted."""
        assert self.lost == []
        assert self.wrong == []
        assert self.answered + self.failures == self.sent > 0


class UpstreamServer:
    """One scripted upstream as a process that can die, stop and come back on its port."""

    def __init__(self, script: Script) -> None:
        self._script, self.port, self._process = script, 0, None
        self.start()

    _process: "subprocess.Popen[str] | None"

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        script = msgspec.json.encode(self._script).decode()
        command = [sys.executable, str(Path(upstream_server.__file__).resolve()), "--port", str(self.port)]
        process = subprocess.Popen([*command, "--script", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening: "), line
        self.port, self._process = int(line.rpartition(":")[2]), process

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()

    async def order(self, **order: object) -> dict[str, object]:
        """Script it (`/_control`), and hear what it has seen."""
        return (await call(self.url, "/_control", order or None)).json()


class Fleet:
    """A gateway, its own engines, and the upstreams."""

    def __init__(self, server: Server, upstreams: Sequence[UpstreamServer], arguments: Sequence[str] = ()) -> None:
        self.server, self.upstreams, self.arguments = server, tuple(upstreams), tuple(arguments)
        self.expected: dict[str, str] = {}

    def learn(self, bodies: Sequence[dict[str, object]]) -> None:
        """What an undisturbed fleet says. For upstreams that is a pure function of the request."""
        for body in bodies:
            key = json.dumps(body["messages"])
            if body["model"] == RELAYED:
                self.expected[key] = "".join(words(RELAYED, conversation_of(body), SCRIPT.tokens))
        own = [body for body in bodies if body["model"] == OWN]
        answers = asyncio.run(self._all(own))
        for body, answer in zip(own, answers, strict=True):
            text, code = read(answer)
            assert code is None, f"undisturbed, yet {code}"
            self.expected[json.dumps(body["messages"])] = text

    async def _all(self, bodies: Sequence[dict[str, object]]) -> list[Answer]:
        return await asyncio.gather(*(call(self.server.url, CHAT, body) for body in bodies))

    def under_load(
        self, bodies: Sequence[dict[str, object]], disturb: Callable[[], Awaitable[None]], clients: int = 12
    ) -> Tally:
        """Ask for `bodies` in turn, again and again, by `clients` at once, until `disturb` is over."""

        async def run() -> Tally:
            tally, numbers, over = Tally(), iter(range(10**9)), asyncio.Event()

            async def client() -> None:
                while not over.is_set():
                    number = next(numbers)
                    await self._ask(bodies[number % len(bodies)], number, tally)

            asking = [asyncio.create_task(client()) for _ in range(clients)]
            try:
                await disturb()
            finally:
                over.set()
                await asyncio.gather(*asking)
            return tally

        return asyncio.run(run())

    async def _ask(self, body: dict[str, object], number: int, tally: Tally) -> None:
        tally.sent += 1
        story = f"request {number} for {body['model']}"
        try:
            answer = await call(self.server.url, CHAT, body)
            text, code = read(answer)
        except (TimeoutError, ConnectionError, AssertionError) as error:
            tally.lost.append(f"{story}: {type(error).__name__} {error}")
            return
        expected = self.expected[json.dumps(body["messages"])]
        if code is not None:
            tally.failed[code] = tally.failed.get(code, 0) + 1
            if not expected.startswith(text):
                tally.wrong.append(f"{story}: {text!r} before {code}, not {expected!r}")
        elif text == expected:
            tally.answered += 1
        else:
            tally.wrong.append(f"{story}: {text!r}, not {expected!r}")

    def recoveries(self) -> dict[str, int]:
        """What the gateway says that failed, and how it met that."""
        lines = self.server.call("/metrics")[1].decode().splitlines()
        found = [line for line in lines if line.startswith("headway_recovery_total{")]
        return {line.split('"')[1]: round(float(line.split()[-1])) for line in found}

    def replicas(self) -> dict[str, dict[str, object]]:
        """What the gateway says of its replicas."""
        return {shown["id"]: shown for shown in json.loads(self.server.call("/v1/replicas")[1])["data"]}

    def settle(self) -> None:
        """Everybody behaves again and is used again; nothing is held."""
        for upstream in self.upstreams:
            asyncio.run(upstream.order(clear=True, metrics={}))
        until(lambda: not self.server.held(), lambda: f"the ledger is back to zero: {self.server.held()}", OUTAGE_S)
        until(self._is_well, lambda: f"everybody serves again: {self.replicas()}", OUTAGE_S)
        assert self.server.process.poll() is None
        assert not [line for line in self.server.errors if "broke a node" in line], self.server.errors

    def _is_well(self) -> bool:
        """A breaker closes by a request that goes well, so some are sent."""
        for model in (OWN, RELAYED):
            self.server.call(CHAT, {"model": model, "messages": [{"role": "user", "content": "well?"}]})
        shown = self.replicas().values()
        return all((one["state"], one["health"], one["breaker"]) == ("ready", "up", "closed") for one in shown)


def read(answer: Answer) -> tuple[str, str | None]:
    """Text and error code of an answer. Raises AssertionError for an end that a client cannot tell."""
    if answer.status != 200:
        assert answer.complete
        return "", str(answer.error()["code"])
    if not answer.headers["content-type"].startswith("text/event-stream"):
        if not answer.complete:  # HTTP itself says so: fewer bytes than its length
            return "", "cut"
        try:
            message = answer.json()["choices"][0]["message"]["content"]  # type: ignore[index]  # JSON
        except ValueError:  # an upstream's own garbage, well framed
            return "", "garbled"
        return str(message), None
    assert answer.complete, "the stream is cut without a word"
    events = answer.events()
    assert events, "an empty stream"
    is_done = events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in (events[:-1] if is_done else events)]
    errors = [chunk["error"]["code"] for chunk in chunks if "error" in chunk]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    if is_done:
        assert errors == [], "an error, and [DONE] after it"
        return text, None
    assert len(errors) == 1, "it ends neither by [DONE] nor by an error"
    assert "error" in chunks[-1], "words after an error"
    return text, str(errors[0])


def bodies(count: int = 24) -> list[dict[str, object]]:
    """Requests of both models, streams and whole answers, greedy and seeded, each with a text of its own."""
    return [
        {
            "model": OWN if number % 2 else RELAYED,
            "messages": [{"role": "user", "content": f"{number} tell a story " * (1 + number % 5)}],
            "max_tokens": 12 if number % 2 == 0 else 20 + number,
            "temperature": 0 if number % 3 else 1,
            "seed": number,
            "stream": number % 4 < 2,
            **({"ignore_eos": True} if number % 2 else {}),
        }
        for number in range(count)
    ]


@contextlib.contextmanager
def fleet(*settings: str, engines: int = 2, upstreams: int = 2, script: Script = SCRIPT) -> Iterator[Fleet]:
    """Start everything, and leave nothing behind."""
    servers = [UpstreamServer(script) for _ in range(upstreams)]
    try:
        watch = "watch={health_interval_s=0.1, scrape_interval_s=0.1, models_interval_s=1.0, timeout_s=0.5}"
        limits = "connection={first_byte_timeout_s=1.0, idle_timeout_s=1.0, connect_timeout_s=1.0}"
        tables = [
            f"{{name='{name}', url='{one.url}', kind='{script.kind}', {watch}, {limits}}}"
            for name, one in zip("abcdefgh", servers, strict=False)
        ]
        given = [
            f"upstreams=[{', '.join(tables)}]",
            f"model.replicas={engines}",
            "engine.synthetic.step_us=4000",
            "front.breaker.open_s=0.2",
            "front.breaker.open_s_max=1.0",
            "supervisor.restart_backoff_s=0.05",
            "supervisor.restarts_max=1000",
            *settings,
        ]
        arguments = ["--engine", "synthetic", *(part for setting in given for part in ("--set", setting))]
        with serve(*arguments) as server:
            made = Fleet(server, servers, arguments)
            until(lambda: len(made.replicas()) == engines + upstreams, "everybody is there")
            made.settle()
            yield made
    finally:
        for one in servers:
            one.kill()


def engine_pids(server: Server) -> list[int]:
    """The processes of the own engines."""
    return children(server)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
