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


def test_what_a_listener_takes_wakes_no_reader() -> None:
    # SPEC E1: a task switch per token and stream was an eighth of the gateway's time
    async def main() -> None:
        streams, _, _ = edge()
        stream = streams.open(R)
        taken: list[Deliver] = []

        def take(item: Deliver) -> bool:
            if item.index < 3:
                taken.append(item)
            return item.index < 3

        stream.listen(take)
        streams.deliver(Deliver(R, 0, (5,)))
        assert taken == []  # nobody waits yet: what came before is the reader's
        assert await stream.next() == [Deliver(R, 0, (5,))]
        reader = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        streams.deliver(Deliver(R, 1, (6,)))
        streams.deliver(Deliver(R, 2, (7,)))
        await asyncio.sleep(0)
        assert not reader.done()
        assert [item.index for item in taken] == [1, 2]
        rest = [Deliver(R, 3, (8,)), Deliver(R, 2, (9,)), End(R, FinishReason.STOP)]
        for item in rest[:2]:  # once something is ready, all that follows waits behind it
            streams.deliver(item)
        streams.end(rest[2])
        assert await reader == rest
        assert len(taken) == 2

    asyncio.run(main())


def test_a_listener_that_breaks_breaks_its_reader_only() -> None:
    async def main() -> None:
        streams, _, _ = edge()
        stream = streams.open(R)
        stream.listen(lambda item: bool(1 // 0))
        reader = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        streams.deliver(Deliver(R, 0, (5,)))
        with pytest.raises(ZeroDivisionError):
            await reader

    asyncio.run(main())
