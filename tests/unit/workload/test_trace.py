from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean

import pytest

from headway.core.blockhash import block_hashes
from headway.core.errors import ConfigError
from headway.core.request import LlmRequest
from headway.core.units import NS_PER_MS
from headway.workload import azure, mooncake
from headway.workload.build import build
from headway.workload.mint import Served
from headway.workload.offered import Offered
from headway.workload.spec import Azure, BurstGpt, Mooncake, Qwen, WorkloadParams

DATA = Path(__file__).parents[3] / "examples/data"
SERVED = (Served("m", 16),)
CONV, MOON = "azure_conv_2023.csv", "mooncake_conversation.jsonl"


def made(*specs: WorkloadParams, folder: Path = DATA, seed: int = 0) -> list[Offered]:
    return list(build(specs, seed, SERVED, folder).first())


def llm(offered: Offered) -> LlmRequest:
    assert isinstance(offered.request, LlmRequest)
    return offered.request


def times(items: Sequence[Offered]) -> list[int]:
    return [item.request.arrived_ns for item in items]


def test_a_trace_keeps_its_gaps_and_lengths() -> None:  # SPEC J2
    rows = list(azure.rows(DATA / CONV))
    items = made(Azure(path=CONV, start_s=2.0))
    assert times(items) == [2_000_000_000 + row.at_ns - rows[0].at_ns for row in rows]
    assert [(len(llm(item).prompt), item.output_tokens) for item in items] == [
        (row.input_tokens, row.output_tokens) for row in rows
    ]
    assert llm(items[0]).max_tokens == 4096
    assert len({llm(item).block_hashes[0] for item in items if llm(item).block_hashes}) == sum(
        bool(llm(item).block_hashes) for item in items
    )


def test_a_part_of_a_trace_begins_at_its_own_start() -> None:
    whole, part = made(Azure(path=CONV)), made(Azure(path=CONV, skip=100, count=50))
    assert [item.request.id for item in part] == [item.request.id for item in whole[100:150]]
    assert times(part)[0] == NS_PER_MS
    assert times(part)[-1] - times(part)[0] == times(whole)[149] - times(whole)[100]
    assert [llm(item).prompt for item in part] == [llm(item).prompt for item in whole[100:150]]


def test_time_scale_stretches_gaps() -> None:
    base, slow = times(made(Azure(path=CONV, count=200))), times(made(Azure(path=CONV, count=200, time_scale=2.5)))
    assert slow[-1] - slow[0] == pytest.approx(2.5 * (base[-1] - base[0]))


@pytest.mark.parametrize("scale", [0.3, 1.7, 3.0])
def test_rate_scale_brings_so_many_requests_in_the_same_time(scale: float) -> None:  # SPEC J2
    base, scaled = made(Azure(path=CONV)), made(Azure(path=CONV, rate_scale=scale))
    # Independent choices per row: a deviation of sqrt(n p (1-p)) requests.
    share = scale % 1
    assert len(scaled) == pytest.approx(1500 * scale, abs=4 * (1500 * share * (1 - share)) ** 0.5 + 1e-9)
    assert times(scaled) == sorted(times(scaled))
    assert times(scaled)[-1] <= times(base)[-1]
    assert times(scaled)[-1] >= times(base)[-10]
    assert len({item.request.id for item in scaled}) == len(scaled)


def test_a_trace_as_bursty_as_azures_stays_so_at_three_times_the_rate() -> None:
    def cv(items: list[Offered]) -> float:
        gaps = [after - before for before, after in pairwise(times(items))]
        mean = fmean(gaps)
        return fmean((gap - mean) ** 2 for gap in gaps) ** 0.5 / mean

    code = "azure_code_2023.csv"
    assert cv(made(Azure(path=code, rate_scale=3.0))) > 0.5 * cv(made(Azure(path=code)))


def test_copies_have_content_of_their_own_that_is_shared_as_that_of_the_rows_is() -> None:
    items = made(Mooncake(path=MOON, count=60, rate_scale=2.0))
    by_copy: dict[bool, list[LlmRequest]] = {False: [], True: []}
    for item in items:
        by_copy[item.request.id.endswith(".1")].append(llm(item))
    assert len(by_copy[False]) == len(by_copy[True]) == 60
    first, second = ({request.block_hashes[0] for request in by_copy[k]} for k in (False, True))
    assert len(first) == len(second) == 1  # every conversation begins with the same block
    assert first != second


def test_prompts_share_what_their_hash_ids_share_in_blocks_of_the_replica() -> None:  # SPEC B2
    rows = list(islice(mooncake.rows(DATA / MOON), 160))
    requests = [llm(item) for item in made(Mooncake(path=MOON))]
    for row, request in zip(rows, requests, strict=True):
        assert request.block_hashes == block_hashes(request.cache_root, request.prompt, 16)
        assert len(request.prompt) == row.input_tokens
    for (row_a, a), (row_b, b) in pairwise(zip(rows, requests, strict=True)):
        shared = next((k for k, (x, y) in enumerate(zip(row_a.blocks, row_b.blocks, strict=False)) if x != y), 0)
        same = next((k for k, (x, y) in enumerate(zip(a.block_hashes, b.block_hashes, strict=False)) if x != y), 0)
        assert same == shared * 512 // 16


def test_two_files_share_no_content_though_their_hash_ids_are_equal() -> None:
    one, other = made(Mooncake(path=MOON, count=1), Mooncake(path=MOON, count=1))
    assert llm(one).block_hashes[0] != llm(other).block_hashes[0]


def test_bursts_of_the_mooncake_traces_rounding_are_spread() -> None:
    assert len(set(times(made(Mooncake(path=MOON))))) == 160
    assert len(set(times(made(Mooncake(path=MOON, quantum_ms=0.0))))) < 40


def test_turns_of_a_qwen_chat_are_one_session_and_the_rest_of_a_prompt_is_its_own(tmp_path: Path) -> None:
    head = b'"timestamp":1.0,"input_length":40,"output_length":5,"type":"text","turn":1,"hash_ids":[1,2]}\n'
    (tmp_path / "q.jsonl").write_bytes(
        b'{"chat_id":4,"parent_chat_id":-1,' + head + b'{"chat_id":5,"parent_chat_id":4,' + head
    )
    one, two = (llm(item) for item in made(Qwen(path="q.jsonl"), folder=tmp_path))
    assert one.session == two.session == "session-0-4.0"
    assert one.prompt[:32] == two.prompt[:32]
    assert set(one.prompt[32:]) & set(two.prompt[32:]) == set()


def test_burstgpts_whole_seconds_are_spread(tmp_path: Path) -> None:
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    lines += [f"{second},GPT-4,10,5,15,API log" for second in range(30) for _ in range(10)]
    (tmp_path / "b.csv").write_text("\n".join(lines))
    items = made(BurstGpt(path="b.csv"), folder=tmp_path)
    assert len(set(times(items))) == 300
    assert times(items)[-1] - times(items)[0] == pytest.approx(30e9, rel=0.05)


def test_a_file_that_is_not_there_is_refused_before_the_run_and_a_bad_line_when_it_comes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.csv: No such file or directory; paths begin at the scenario file"):
        build([Azure(path="none.csv")], 0, SERVED, tmp_path)
    (tmp_path / "a.csv").write_bytes((DATA / CONV).read_bytes()[:200] + b"\nwhat")
    with pytest.raises(ConfigError, match=r"a.csv, line \d+: "):
        made(Azure(path="a.csv"), folder=tmp_path)


@pytest.mark.parametrize("change", [{"skip": 1500}, {"count": 1, "rate_scale": 1e-9}])
def test_a_trace_of_which_nothing_is_left_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="workload '0': skip, rate_scale and filters leave no request of azure"):
        made(Azure(path=CONV, **change))  # type: ignore[arg-type]  # fields of Azure


def test_a_seed_is_one_load() -> None:  # SPEC J6
    spec = Mooncake(path=MOON, rate_scale=1.5)
    assert made(spec, seed=1) == made(spec, seed=1)
    assert times(made(spec, seed=1)) != times(made(spec, seed=2))
