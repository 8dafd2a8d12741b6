from pathlib import Path

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.core.request import LlmRequest
from headway.workload import sharegpt
from headway.workload.arrivals import Regular
from headway.workload.build import build
from headway.workload.mint import Served
from headway.workload.offered import Offered
from headway.workload.sessions import Turn
from headway.workload.spec import ShareGpt

SERVED = (Served("m", 16),)
GROUND = Path(__file__).parents[4] / "shared/data/groundtruth/vllm_llama31_8b_rtxpro6000/requests.jsonl"


def said(*texts: tuple[str, int]) -> dict[str, object]:
    return {"id": "x", "conversations": [{"from": side, "value": "a" * chars} for side, chars in texts]}


def conversations(tmp_path: Path, *found: dict[str, object]) -> Path:
    path = tmp_path / "s.json"
    path.write_bytes(msgspec.json.encode(found))
    return path


def llm(offered: Offered | None) -> LlmRequest:
    assert offered is not None
    assert isinstance(offered.request, LlmRequest)
    return offered.request


def test_turns_are_what_was_asked_and_answered(tmp_path: Path) -> None:  # SPEC J2
    path = conversations(
        tmp_path,
        said(("human", 40), ("gpt", 81), ("human", 4), ("gpt", 8)),
        said(("gpt", 100), ("human", 40), ("human", 40), ("gpt", 4), ("gpt", 4), ("human", 400)),
        said(("system", 40), ("human", 40), ("gpt", 1)),
        said(("human", 40)),
        said(),
    )
    assert list(sharegpt.conversations(path, 4.0)) == [
        (Turn(10, 21), Turn(1, 2)),
        (Turn(20, 2),),
        (Turn(20, 1),),
    ]


def test_a_conversation_goes_on_when_it_is_answered(tmp_path: Path) -> None:
    conversations(tmp_path, said(("human", 40), ("gpt", 80), ("human", 20), ("gpt", 8)), said(("human", 4), ("gpt", 4)))
    spec = ShareGpt(path="s.json", arrivals=Regular(rate_per_s=1.0))
    source = build([spec], 0, SERVED, tmp_path)
    first, other = source.first()
    after = source.after(first.request.id, 5 * 10**9)
    assert len(llm(after).prompt) == 10 + 20 + 5
    assert llm(after).prompt[:10] == llm(first).prompt
    assert llm(after).arrived_ns > 5 * 10**9
    assert source.after(llm(after).id, 10**10) is None
    assert source.after(other.request.id, 10**10) is None


def test_lines_of_lengths_come_at_their_times_with_their_tokens(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(
        '{"input_toks":3,"output_toks":7,"arrival_time_ns":5000,"input_tok_ids":[9,8,7],"output_tok_ids":[1]}\n'
        '{"input_toks":20,"output_toks":2,"arrival_time_ns":9000}\n'
    )
    one, two = build([ShareGpt(path="s.jsonl")], 0, SERVED, tmp_path).first()
    assert llm(one).prompt == (9, 8, 7)
    assert llm(two).arrived_ns - llm(one).arrived_ns == 4000
    assert (one.output_tokens, two.output_tokens) == (7, 2)


def test_an_arrival_process_takes_the_place_of_the_times_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"input_toks":3,"output_toks":7}\n' * 3)
    spec = ShareGpt(path="s.jsonl", arrivals=Regular(rate_per_s=2.0), start_s=0.0, rate_scale=2.0)
    found = [llm(item).arrived_ns for item in build([spec], 0, SERVED, tmp_path).first()]
    assert found == [250_000_000, 500_000_000, 750_000_000]
    with pytest.raises(ConfigError, match="line 1: neither arrival_time_ns nor arrival_time; set `arrivals`"):
        list(build([ShareGpt(path="s.jsonl")], 0, SERVED, tmp_path).first())


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"input_toks":3}', "line 1: Object missing required field `output_toks`"),
        ('{"input_toks":3,"output_toks":7,"arrival_time":1.5,"input_tok_ids":[1]}', "line 1: 1 input_tok_ids for 3"),
        ('{"input_toks":1,"output_toks":7,"arrival_time":1.5,"input_tok_ids":[-1]}', "outside 0 to"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / "s.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=text):
        list(sharegpt.rows(tmp_path / "s.jsonl"))


def test_a_file_of_texts_needs_arrivals_and_a_bad_conversation_is_named(tmp_path: Path) -> None:
    path = conversations(tmp_path, said(("human", 4), ("gpt", 4)), {"conversations": [{"from": "human"}]})
    with pytest.raises(ConfigError, match="has texts and no times; set its `arrivals`"):
        build([ShareGpt(path="s.json")], 0, SERVED, tmp_path)
    with pytest.raises(ConfigError, match="conversation 1: Object missing required field `value`"):
        list(sharegpt.conversations(path, 4.0))
    path.write_text("{}")
    with pytest.raises(ConfigError, match="ShareGPT's file is one JSON list"):
        list(sharegpt.conversations(path, 4.0))


@pytest.mark.skipif(not GROUND.exists(), reason="the logs are not on this machine")
def test_the_requests_of_the_vllm_logs_can_be_sent_again() -> None:
    rows = list(sharegpt.rows(GROUND))
    assert len(rows) == 300
    assert (rows[0].input_tokens, rows[0].output_tokens) == (2358, 531)
    assert rows[1].at_ns - rows[0].at_ns == pytest.approx(285_059_300, abs=500)  # ns of a float second since 1970
