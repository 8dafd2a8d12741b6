"""Sources are pulled while the simulation runs, and what is over is handed on: memory holds what is in flight."""

import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from headway.core.decisions import Decision
from headway.core.evidence import EvidenceRecord
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest, SamplingParams
from headway.core.units import NS_PER_MS, NS_PER_S, Ns
from headway.engines.synthetic.engine import SyntheticParams
from headway.sched.llm.params import LlmParams
from headway.sim import offers
from headway.sim.clients import Stream
from headway.sim.driver import Simulation
from headway.sim.fleet import FRONT, Fleet, FleetParams
from headway.workload.offered import Offered

GAP: Ns = 40 * NS_PER_MS
THINK: Ns = 70 * NS_PER_MS


def offered(name: str, at_ns: Ns, tokens: int = 3) -> Offered:
    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    request = LlmRequest(RequestId(name), TenantId("t"), ModelId("synthetic"), (1, 2, 3), sampling, at_ns)
    return Offered(request, tokens)


class Steady:
    """One request every GAP; `turns` more by each client after its first."""

    def __init__(self, count: int, turns: int = 0) -> None:
        self.count, self.turns = count, turns
        self.pulled = 0
        self.ended: list[tuple[RequestId, Ns]] = []

    def first(self) -> Iterator[Offered]:
        for place in range(self.count):
            self.pulled += 1
            yield offered(f"req-{place}-0", NS_PER_MS + place * GAP)

    def after(self, request: RequestId, ended_ns: Ns, answer: Sequence[int] | None = None) -> Offered | None:
        if not self.turns:
            return None
        self.ended.append((request, ended_ns))
        _, place, turn = request.split("-")
        if int(turn) == self.turns:
            return None
        return offered(f"req-{place}-{int(turn) + 1}", ended_ns + THINK)


class Counting:
    """Counts what is over, and how much the simulation holds meanwhile."""

    def __init__(self) -> None:
        self.sim: Simulation | None = None
        self.records: list[EvidenceRecord] = []
        self.sent: dict[RequestId, Ns] = {}
        self.held = self.decisions = self.over = 0
        self.keeps = True

    def request(self, record: EvidenceRecord, stream: Stream) -> None:
        assert self.sim is not None
        self.over += 1
        self.held = max(self.held, len(self.sim.clients.streams) + self.sim.offers.waiting)
        if self.keeps:
            self.records.append(record)
            self.sent[record.request] = stream.sent_ns

    def decision(self, decision: Decision) -> None:
        self.decisions += 1


def fleet(sink: Counting) -> Fleet:
    params = FleetParams(replicas=2, engine=SyntheticParams(kv_blocks=256), llm=LlmParams(decisions=False))
    ran = Fleet(params, sink)
    sink.sim = ran.sim
    return ran


def test_every_request_of_a_source_is_handed_on_with_its_record() -> None:
    sink, source = Counting(), Steady(40)
    ran = fleet(sink)
    ran.sim.offer(FRONT, source)
    assert source.pulled == 1
    assert not ran.sim.serve(until_ns=10 * GAP)
    assert source.pulled < 14  # those that came, and one that waits
    assert ran.sim.serve()
    assert [record.request for record in sink.records] == [f"req-{place}-0" for place in range(40)]
    assert {record.output_tokens for record in sink.records} == {3}
    assert not ran.sim.clients.streams


def test_the_next_turn_comes_when_its_client_has_thought() -> None:
    sink, source = Counting(), Steady(3, turns=2)
    ran = fleet(sink)
    ran.sim.offer(FRONT, source)
    assert ran.sim.serve()
    assert len(sink.records) == 9
    ended = dict(source.ended)
    for place in range(3):
        for turn in range(2):
            before, after = RequestId(f"req-{place}-{turn}"), RequestId(f"req-{place}-{turn + 1}")
            assert sink.sent[after] == ended[before] + THINK


def test_without_a_sink_the_clients_keep_everything() -> None:
    ran = Fleet(FleetParams(engine=SyntheticParams(kv_blocks=256)))
    ran.sim.offer(FRONT, Steady(5))
    assert ran.sim.serve()
    assert [stream.evidence is not None for stream in ran.sim.clients.streams.values()] == [True] * 5


def test_memory_grows_with_what_is_in_flight_not_with_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    # SPEC J1
    monkeypatch.setattr(offers, "LINGER_NS", NS_PER_S)  # both runs are longer
    peaks, sizes = [], []
    # An account remembers its last 4096 leases, however long the run; the source's names are the test's.
    bounded = [tracemalloc.Filter(False, "*ledger.py"), tracemalloc.Filter(False, __file__)]
    for requests in (100, 500):
        sink = Counting()
        ran = fleet(sink)
        ran.sim.offer(FRONT, Steady(requests))
        tracemalloc.start()
        sink.keeps = False
        assert ran.sim.serve()
        sizes.append(
            sum(item.size for item in tracemalloc.take_snapshot().filter_traces(bounded).statistics("filename"))
        )
        tracemalloc.stop()
        assert sink.over == requests
        assert len(ran.sim.offers.lengths) < 100  # those that linger
        peaks.append(sink.held)
    assert peaks[1] <= peaks[0] + 1
    assert (sizes[1] - sizes[0]) / 400 < 200  # bytes a request; a stream with its record holds over 2000
