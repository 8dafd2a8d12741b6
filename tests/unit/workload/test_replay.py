from pathlib import Path

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.core.request import LlmRequest
from headway.workload.build import build
from headway.workload.mint import Served
from headway.workload.offered import Offered
from headway.workload.spec import Replay

SERVED = (Served("m", 16), Served("n", 32))


def record(sent_ms: int, **change: object) -> dict[str, object]:
    base = {
        "request": "req-1",
        "tenant": "a",
        "model": "m",
        "prompt_tokens": 40,
        "output_tokens": 7,
        "cached_tokens": 0,
    }
    return base | {"sent_ns": sent_ms * 1_000_000, "unknown": {"x": 1}} | change


def made(folder: Path, *records: dict[str, object], spec: Replay | None = None) -> list[Offered]:
    (folder / "r.jsonl").write_bytes(b"\n".join(msgspec.json.encode(item) for item in records))
    return list(build([spec or Replay(path="r.jsonl")], 0, SERVED, folder).first())


def llm(offered: Offered) -> LlmRequest:
    assert isinstance(offered.request, LlmRequest)
    return offered.request


def test_requests_come_again_in_the_order_of_their_beginning(tmp_path: Path) -> None:  # SPEC J2
    items = made(tmp_path, record(30, output_tokens=3), record(10, model="n", tenant="b"), record(20, prompt_tokens=5))
    assert [item.request.arrived_ns for item in items] == [1_000_000, 11_000_000, 21_000_000]
    assert [(len(llm(item).prompt), item.output_tokens) for item in items] == [(40, 7), (5, 7), (40, 3)]
    assert [(llm(item).model, llm(item).tenant) for item in items] == [("n", "b"), ("m", "a"), ("m", "a")]
    assert [llm(item).block_tokens for item in items] == [32, 16, 16]


def test_a_servers_export_has_milliseconds(tmp_path: Path) -> None:
    items = made(tmp_path, record(0, sent_ns=None, started_ms=5.5), record(0, sent_ns=None, started_ms=7.25))
    assert items[1].request.arrived_ns - items[0].request.arrived_ns == 1_750_000


def test_what_was_cached_then_is_shared_by_the_prompts_of_a_tenant(tmp_path: Path) -> None:
    records = [record(k, cached_tokens=32, tenant=tenant) for k, tenant in enumerate(("a", "a", "b"))]
    one, two, other = (llm(item).block_hashes for item in made(tmp_path, *records))
    assert one[:2] == two[:2]
    assert one[0] != other[0]
    one, two, _ = (
        llm(item).block_hashes for item in made(tmp_path, *records, spec=Replay(path="r.jsonl", keeps_hits=False))
    )
    assert one[0] != two[0]


def test_a_request_without_an_answer_gets_the_length_that_the_scenario_says(tmp_path: Path) -> None:
    spec = Replay(path="r.jsonl", unanswered_tokens=99)
    assert [item.output_tokens for item in made(tmp_path, record(1, output_tokens=0), record(2), spec=spec)] == [99, 7]


def test_tenant_and_model_of_the_scenario_take_the_place_of_those_recorded(tmp_path: Path) -> None:
    spec = Replay(path="r.jsonl", tenant="z", model="n")
    assert {(llm(item).tenant, llm(item).model) for item in made(tmp_path, record(1), spec=spec)} == {("z", "n")}
    with pytest.raises(ConfigError, match="model 'gone' is served by no pool"):
        made(tmp_path, record(1, model="gone"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prompt_tokens": None}, "line 1: no prompt_tokens"),
        ({"sent_ns": None}, "line 1: neither sent_ns nor started_ms"),
        ({"output_tokens": "x"}, r"line 1: Expected `int`, got `str` - at `\$.output_tokens`"),
    ],
)
def test_a_bad_record_is_named(tmp_path: Path, change: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        made(tmp_path, record(1, **change))


def test_a_file_that_is_not_parquet_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "r.parquet").write_bytes(b"what")
    with pytest.raises(ConfigError, match=r"r.parquet: "):
        list(build([Replay(path="r.parquet")], 0, SERVED, tmp_path).first())
