"""Ten thousand requests that nobody would write: no 5xx, no hang, nothing left behind."""

import asyncio
import json
import random

import pytest
from tests.e2e.fuzz import Generator, Request
from tests.e2e.serving import Server, serve, until
from tests.e2e.wire import Answer, Connection, request_bytes

CONNECTIONS = 16
MODEL = {"model": "synthetic"}
BASES = {
    "/v1/chat/completions": MODEL | {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/completions": MODEL | {"prompt": "hi", "max_tokens": 3},
    "/tokenize": MODEL | {"prompt": "hi"},
    "/detokenize": MODEL | {"tokens": [1, 2]},
    "/v1/estimates": {"endpoint": "/v1/completions", "body": MODEL | {"prompt": "hi"}},
}
# Whatever a fuzzed body asks for stays short, and nothing waits for a clock.
SMALL = ("engine.max_model_len=160", "limits.n=3", "limits.prompts=4", "limits.header_timeout_s=1",
         "limits.body_timeout_s=1", "engine.synthetic.step_us=0", "engine.synthetic.token_us=0")  # fmt: skip


def fault(answer: Answer, request: Request) -> str | None:
    """What is wrong with an answer, if anything."""
    if not answer.complete:
        return "the answer breaks off"
    if answer.status >= 500:
        return f"status {answer.status}"
    if "x-request-id" not in answer.headers:
        return "no x-request-id"
    if request.method == "HEAD":
        return "a body" if answer.body else None
    if answer.status >= 400:
        error = json.loads(answer.body)["error"]
        if set(error) != {"message", "type", "param", "code"} or not error["message"] or not error["code"]:
            return f"the error object is {error}"
        return "a long error" if len(answer.body) > 8000 else None
    if answer.headers["content-type"].startswith("text/event-stream"):
        last = answer.events()[-1]
        return None if last == "[DONE]" or "error" in json.loads(last) else f"the stream ends with {last[:200]}"
    if answer.headers["content-type"].startswith("application/json"):
        json.loads(answer.body)
    return None


class Fuzzers:
    """Clients on kept connections, and what they saw."""

    def __init__(self, server: Server, seed: str) -> None:
        self.faults: list[str] = []
        self.statuses: dict[int, int] = {}
        self._url, self._seed = server.url, seed
        self._document = json.loads(server.call("/openapi.json")[1])

    async def run(self, requests: int) -> None:
        """Send them all."""
        each = requests // CONNECTIONS
        await asyncio.gather(*(self._fuzz(number, each) for number in range(CONNECTIONS)))

    async def _fuzz(self, number: int, count: int) -> None:
        generator = Generator(self._document, BASES, random.Random(f"{self._seed} {number}"))
        connection = await Connection.open(self._url)
        for at in range(count):
            request = generator.request()
            await connection.send(request_bytes(request.path, request.body, request.headers, request.method))
            wrong: str | None
            try:
                answer = await connection.answer(request.method)
                wrong = "no answer" if answer is None else fault(answer, request)
            except TimeoutError:
                answer, wrong = None, "it hangs"
            if answer is not None:
                self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
            if wrong is not None:
                self.faults.append(f"seed {self._seed} {number}, request {at}, {wrong}: {str(request)[:600]}")
            if answer is None or answer.headers.get("connection") == "close":
                await connection.close()
                connection = await Connection.open(self._url)
        await connection.close()


@pytest.mark.parametrize("seed", ["one", *(pytest.param(f"more {n}", marks=pytest.mark.slow) for n in range(10))])
def test_ten_thousand_fuzzed_requests(seed: str) -> None:
    # SPEC H1, L-2
    with serve("--engine", "synthetic", *(part for one in SMALL for part in ("--set", one))) as server:
        fuzzers = Fuzzers(server, seed)
        asyncio.run(fuzzers.run(10_000))
        assert fuzzers.faults == []
        assert sum(fuzzers.statuses.values()) == 10_000
        assert fuzzers.statuses[200] > 1000, fuzzers.statuses
        assert fuzzers.statuses[400] > 1000, fuzzers.statuses
        until(lambda: not server.held(), lambda: f"the ledger is back to zero: {server.held()}")
        assert not [line for line in server.errors if "Traceback" in line or "broke a node" in line], server.errors
        assert server.call("/v1/completions", BASES["/v1/completions"])[0] == 200
