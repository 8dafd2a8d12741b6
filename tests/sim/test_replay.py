"""A run's evidence, offered once more: the same arrivals and lengths."""

from pathlib import Path

import msgspec
import pytest

from headway.adapters.telemetry.jsonl import evidence_lines
from headway.bench.parquet import write_parquet
from headway.bench.results import REQUESTS, RequestsFormat, RunWriter
from headway.bench.seen import Audience
from headway.bench.simulated import simulate
from headway.core.evidence import EvidenceRecord, FrontMarks, evidence_record
from headway.core.ids import ModelId, RequestId, TenantId
from headway.core.request import LlmRequest
from headway.sim.pools import PoolParams
from headway.sim.scenario import Scenario
from headway.sim.sources import source_of
from headway.sim.system import System
from headway.workload.arrivals import Gamma
from headway.workload.build import build
from headway.workload.mint import Served
from headway.workload.offered import Offered
from headway.workload.spec import Replay, Sessions, Synthetic

SERVED = (Served(PoolParams().model, PoolParams().engine.block_size),)
SCENARIO = Scenario(
    pools=(PoolParams(replicas=2),),
    workload=(
        Synthetic(arrivals=Gamma(rate_per_s=20.0, cv=3.0), count=60, tenant="a"),
        Sessions(count=10, tenant="b"),
    ),
)


def shape(items: list[Offered]) -> list[tuple[int, int, int, str]]:
    """Arrival after the first, lengths and tenant of each request."""
    requests = [item.request for item in items]
    assert all(isinstance(request, LlmRequest) for request in requests)
    begun = requests[0].arrived_ns
    return [
        (request.arrived_ns - begun, request.prompt_tokens, item.output_tokens, request.tenant)
        for request, item in zip(requests, items, strict=True)
        if isinstance(request, LlmRequest)
    ]


def run(folder: Path, shape: RequestsFormat) -> None:
    with RunWriter(folder, msgspec.json.encode(SCENARIO), shape) as writer:
        System(SCENARIO, source_of(SCENARIO), Audience(SCENARIO, writer)).sim.run()


def replayed(folder: Path, name: str) -> list[Offered]:
    return list(build([Replay(path=name)], 0, SERVED, folder).first())


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_simulated_run_comes_again_with_the_same_arrivals_and_lengths(
    tmp_path: Path, form: RequestsFormat
) -> None:  # SPEC J2
    run(tmp_path, form)
    again = shape(replayed(tmp_path, REQUESTS[form]))
    open_loop = [item for item in source_of(SCENARIO).first() if item.request.tenant == "a"]
    assert [item[1:] for item in again if item[3] == "a"] == [item[1:] for item in shape(open_loop)]
    first = next(item for item in again if item[3] == "a")[0]
    assert [item[0] - first for item in again if item[3] == "a"] == [item[0] for item in shape(open_loop)]
    assert sum(item[3] == "b" for item in again) > 10  # later turns too


def test_a_replay_of_a_replay_is_the_replay(tmp_path: Path) -> None:
    run(tmp_path, "jsonl")
    first = Replay(path=str(tmp_path / "requests.jsonl"))
    simulate(msgspec.structs.replace(SCENARIO, workload=(first,)), folder=tmp_path / "again")
    written = next((tmp_path / "again").glob("requests.*"))
    assert shape(replayed(tmp_path / "again", written.name)) == shape(replayed(tmp_path, "requests.jsonl"))


def test_what_a_server_exports_comes_again(tmp_path: Path) -> None:  # SPEC J2, I4
    def ended(number: int) -> EvidenceRecord:
        at_ns = number * 2_500_000
        marks = FrontMarks(RequestId(f"req-{number}"), TenantId("t"), at_ns, at_ns, at_ns, at_ns, None, None, 10**9, 5)
        told = msgspec.structs.replace(marks, model=ModelId(SERVED[0].model), prompt_tokens=70 + number)
        return evidence_record(told, None)

    lines = evidence_lines([ended(2), ended(0), ended(1)])
    (tmp_path / "evidence.jsonl").write_bytes(lines)
    write_parquet(lines, tmp_path / "evidence.parquet")
    expected = [(0, 70, 5, "t"), (2_500_000, 71, 5, "t"), (5_000_000, 72, 5, "t")]
    assert shape(replayed(tmp_path, "evidence.jsonl")) == expected
    assert shape(replayed(tmp_path, "evidence.parquet")) == expected
