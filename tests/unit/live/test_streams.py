import asyncio

import pytest

from headway.core.decisions import Decision
from headway.core.effects import Deliver, End, Record
from headway.core.errors import InvariantError
from headway.core.evidence import EvidenceRecord, FrontMarks, evidence_record
from headway.core.ids import RequestId, TenantId
from headway.core.request import FinishReason
from headway.live.streams import StreamEdge

R = RequestId("req-1")


def edge() -> tuple[StreamEdge, list[Decision], list[EvidenceRecord]]:
    decisions: list[Decision] = []
    records: list[EvidenceRecord] = []
    return StreamEdge(decisions.append, records.append), decisions, records


def test_a_reader_gets_everything_that_is_ready_in_order() -> None:
    async def main() -> None:
        streams, _, _ = edge()
        stream = streams.open(R)
        items = [Deliver(R, 0, (5,)), Deliver(R, 1, (6,)), End(R, FinishReason.STOP)]
        streams.deliver(items[0])
        streams.deliver(items[1])
        streams.end(items[2])
        assert await stream.next() == items

    asyncio.run(main())


def test_a_waiting_reader_is_woken() -> None:
    async def main() -> None:
        streams, _, _ = edge()
        stream = streams.open(R)
        reader = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        assert not reader.done()
        streams.deliver(Deliver(R, 0, (5,)))
        assert await reader == [Deliver(R, 0, (5,))]

    asyncio.run(main())


def test_what_comes_for_a_closed_stream_is_dropped() -> None:
    streams, _, _ = edge()
    streams.open(R)
    streams.close(R)
    streams.deliver(Deliver(R, 0, (5,)))
    streams.end(End(R, FinishReason.CANCELLED))
    streams.open(R)


def test_an_id_in_use_is_a_bug() -> None:
    streams, _, _ = edge()
    streams.open(R)
    with pytest.raises(InvariantError, match="req-1"):
        streams.open(R)


def test_records_go_to_their_stores() -> None:
    streams, decisions, records = edge()
    decision = Decision("pool", 1, "route", "rep-1", "only one")
    record = evidence_record(FrontMarks(R, TenantId("t"), 0, 1, 2, None, None, None, 3, 0), None)
    streams.record(Record(decision))
    streams.record(Record(record))
    assert (decisions, records) == ([decision], [record])
