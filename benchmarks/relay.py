"""Where the CPU time of a relayed request goes, without sockets: the relay's two sides, and the front with each policy.

    PYTHONPATH=src python benchmarks/relay.py [--policies round_robin,cost_aware] [--body-bytes 1024,32768]

Microseconds per request, the lower quartile over many requests, which a shared machine disturbs least. What the system
adds (reads, writes, polling) is in `benchmarks/gateway.py`.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections import deque
from collections.abc import Callable

from gateway_backend import HEAD, LAST, TOKEN, WHOLE
from uvicorn.config import Config
from uvicorn.server import ServerState

from headway.adapters.gateway.relay.connection import ClientConnection, relay_protocol
from headway.adapters.gateway.relay.ports import Exchange, RelayModel, Target, Usage
from headway.adapters.gateway.relay.prepare import Prepared
from headway.adapters.gateway.relay.server import RelayServer
from headway.adapters.gateway.settings import GatewaySettings
from headway.adapters.upstream.connection import UpstreamConnection
from headway.adapters.upstream.pool import Endpoint, PoolSettings, UpstreamPool
from headway.core.effects import Send
from headway.core.events import Event, MessageArrived, PeerJoined, RequestArrived, StreamClosed
from headway.core.evidence import WorkerMarks
from headway.core.ids import ModelId, NodeId, RequestId, TenantId
from headway.core.messages import Finished, Report, Submit
from headway.core.reports import RateLimits, ReplicaReport
from headway.core.request import FinishReason, TextRequest
from headway.sched.nodes import FrontConfig, FrontNode
from headway.sched.registry import PolicyChoice

REQUESTS = 4000
REPORT_EVERY = 50
REPLICAS = 4
IN_FLIGHT = 32


class Wire(asyncio.Transport):
    """Takes every byte."""

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def abort(self) -> None: ...

    def get_extra_info(self, name: str, default: object = None) -> object:
        return None


class Direct:
    """Serving, witness and answering without a front."""

    def __init__(self) -> None:
        self.pool = UpstreamPool(Endpoint("127.0.0.1", 1), PoolSettings(), self.now_ns)

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def model(self, name: str) -> RelayModel | None:
        return RelayModel(ModelId(name), 64)

    def limits(self, tenant: TenantId) -> RateLimits:
        return RateLimits()

    def submit(self, exchange: Exchange, request: TextRequest) -> None:
        self.pool.start(exchange, Target(), self)

    def gone(self, request: RequestId) -> None: ...

    def closed(self, request: RequestId, first_byte_ns: int | None, input_bytes: int) -> None: ...

    def submitted(self, prepared: Prepared) -> None: ...

    def begun(self) -> None: ...

    def done(self, usage: Usage, health: str) -> None: ...

    def refused(self, *_: object) -> None: ...

    def fault(self, reason: str) -> None:
        raise AssertionError(reason)


def typical(one: Callable[[], tuple[float, float]]) -> list[float]:
    """The lower quartile of each of the two parts, in microseconds."""
    for _ in range(REQUESTS // 4):
        one()
    parts = zip(*(one() for _ in range(REQUESTS)), strict=True)
    return [1e6 * statistics.quantiles(part, n=4)[0] for part in parts]


async def relay(size: int, is_stream: bool) -> list[float]:
    """Request and answer of the relay alone."""
    loop, serving = asyncio.get_running_loop(), Direct()
    server = RelayServer(serving, GatewaySettings(), serving, loop)
    client = relay_protocol(server)(config=Config("x"), server_state=ServerState(), app_state={}, _loop=loop)
    assert isinstance(client, ClientConnection)
    client.connection_made(Wire())
    upstream = UpstreamConnection(serving.pool.heads, serving.pool)
    upstream.connection_made(Wire())
    serving.pool.release(upstream, is_reusable=True)
    text = "alpha beta gamm " * (size // 16)
    body = {"model": "mock", "messages": [{"role": "user", "content": text}], "max_tokens": 64, "stream": is_stream}
    raw = json.dumps(body).encode()
    lines = b"host: 127.0.0.1:8000\r\ncontent-type: application/json\r\nauthorization: Bearer sk-test\r\n"
    data = b"POST /v1/chat/completions HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (lines, len(raw), raw)
    pieces = [HEAD, *[TOKEN] * 63, TOKEN + LAST] if is_stream else [WHOLE]

    def one() -> tuple[float, float]:
        start = time.perf_counter()
        client.data_received(data)
        sent = time.perf_counter()
        for piece in pieces:
            upstream.data_received(piece)
        return sent - start, time.perf_counter() - sent

    found = typical(one)
    client.connection_lost(None)
    upstream.abort()
    return found


class Ring:
    """A front before four upstreams that answer by themselves."""

    def __init__(self, policy: str, blocks: int) -> None:
        self.front = FrontNode(NodeId("front"), FrontConfig(router=PolicyChoice(policy)))
        self.nodes = [NodeId(f"up-{number}") for number in range(REPLICAS)]
        self.at_ns, self.count, self.blocks = 0, 0, blocks
        self.running: dict[NodeId, int] = dict.fromkeys(self.nodes, 0)
        self.seen: dict[NodeId, int] = dict.fromkeys(self.nodes, 0)
        self.open: deque[tuple[NodeId, RequestId]] = deque()
        for node in self.nodes:
            self.front.handle(PeerJoined(0, "up", node, 1))
            self.report(node)

    def report(self, node: NodeId) -> None:
        self.count += 1
        report = ReplicaReport(
            node, 1, self.count, self.at_ns, "upstream", "mock", 0, self.running[node], 0, 0, 0, 0, self.seen[node],
            source="counted", prefill_tokens_per_s=1e7,
        )  # fmt: skip
        self.front.handle(MessageArrived(self.at_ns, node, node, Report(report)))

    def arrives(self) -> Event:
        self.count += 1
        self.at_ns += 300_000
        request, hashes = RequestId(f"req-{self.count}"), tuple(b"%d-%d" % (self.count, n) for n in range(self.blocks))
        made = TextRequest(
            request, TenantId("default"), ModelId("mock"), 128 * self.blocks + 9, 64, self.at_ns,
            block_hashes=hashes, block_tokens=128,
        )  # fmt: skip
        return RequestArrived(self.at_ns, "edge", made, self.at_ns - 1000, self.at_ns)

    def ends(self) -> tuple[Event, Event]:
        node, request = self.open.popleft()
        self.running[node] -= 1
        at_ns = self.at_ns
        marks = WorkerMarks(node, at_ns - 900_000, at_ns - 900_000, at_ns, at_ns, at_ns)
        finished = Finished(request, 1, FinishReason.STOP, 2, marks, None, "success", 256, 0)
        return MessageArrived(at_ns, node, node, finished), StreamClosed(at_ns, "edge", request, at_ns, 1000)

    def one(self) -> tuple[float, float]:
        """One arrival, and the end of an earlier request."""
        event = self.arrives()
        start = time.perf_counter()
        effects = self.front.handle(event)
        arrived = time.perf_counter() - start
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Submit):
                self.running[effect.dst] += 1
                self.seen[effect.dst] = effect.message.number
                self.open.append((effect.dst, effect.message.request.id))
        if len(self.open) <= IN_FLIGHT:
            return arrived, 0.0
        finished, closed = self.ends()
        start = time.perf_counter()
        self.front.handle(finished)
        self.front.handle(closed)
        ended = time.perf_counter() - start
        if self.count % REPORT_EVERY == 0:
            for node in self.nodes:
                self.report(node)
        return arrived, ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="round_robin,least_tokens,cache_aware,cost_aware")
    parser.add_argument("--body-bytes", default="1024,32768")
    given = parser.parse_args()
    for size in map(int, given.body_bytes.split(",")):
        for is_stream in (False, True):
            asked, answered = asyncio.run(relay(size, is_stream))
            kind = "64-chunk stream" if is_stream else "JSON"
            print(f"relay, {size} byte prompt, {kind:16} request {asked:7.1f}   answer {answered:7.1f} us")
    for policy in given.policies.split(","):
        for size in map(int, given.body_bytes.split(",")):
            ring = Ring(policy, size // 512)
            arrived, ended = typical(ring.one)
            ring.front.check_invariants()
            print(f"front, {size} byte prompt, {policy:16} arrival {arrived:7.1f}   end    {ended:7.1f} us")


if __name__ == "__main__":
    main()
