import re
from xml.etree import ElementTree

import pytest
from tests.unit.bench.ended import end, simulated

from headway.bench.columns import Columns
from headway.bench.ends import RequestEnd, Tokens, table_of
from headway.bench.run_segments import segment_bars


def columns(*tables: list[RequestEnd]) -> Columns:
    found = Columns()
    for ends in tables:
        found.extend(table_of(ends, Tokens([item.outcome for item in ends])))
    return found


def test_segments_of_every_request_add_up_over_tables_that_have_others() -> None:  # SPEC I2
    _, ends = simulated()
    found = columns([end("req-x", 0)], ends[:20], ends[20:])
    total = sum(found.segment(name) for name in found.segments)
    assert list(total[1:]) == pytest.approx([item.evidence.e2e_ms for item in ends], rel=1e-4)
    chosen = found.select(found.completed)
    assert chosen.segment("decode").tolist() == found.segment("decode")[found.completed].tolist()


def test_bars_tell_the_slowest_from_all() -> None:
    # 19 of 20 wait 1 ms at the front of 10 ms to their first token; the last one prefills ten times as long
    picture = segment_bars(columns([end(f"req-{n}", n, 100 if n == 19 else 10, 200) for n in range(20)]))
    texts = [node.text for node in ElementTree.fromstring(picture).iter() if node.tag.endswith("text")]
    assert "to the first token: all" in texts
    assert "mean 14.5 ms" in texts
    assert "mean 100 ms" in texts
    hints = re.findall(r"<title>prefill: ([^<]*)</title>", picture)
    assert hints[:2] == ["12.5 ms, 86.2%", "98 ms, 98.0%"]


def test_nothing_completed_is_no_picture() -> None:
    assert segment_bars(columns([end("req-0", 0)])) == ""
    assert segment_bars(Columns()) == ""
