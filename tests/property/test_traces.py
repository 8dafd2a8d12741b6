"""Whatever bytes a trace file holds, reading it ends in rows that can be sent or in one ConfigError."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.errors import ConfigError
from headway.workload import azure, burstgpt, mooncake, qwen, replay, sharegpt
from headway.workload.rows import TOKENS_MAX, Row
from headway.workload.spec import Replay

SEEDS: dict[str, tuple[Callable[[Path], Iterator[Row]], bytes]] = {
    "azure": (azure.rows, b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"),
    "burstgpt": (
        burstgpt.rows,
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,4,1,5,API log\n",
    ),
    "mooncake": (mooncake.rows, b'{"timestamp":0,"input_length":600,"output_length":5,"hash_ids":[0,1]}\n'),
    "qwen": (
        qwen.rows,
        b'{"chat_id":1,"parent_chat_id":-1,"timestamp":1.5,"input_length":20,"output_length":5,"type":"text",'
        b'"turn":1,"hash_ids":[1,2]}\n',
    ),
    "sharegpt": (sharegpt.rows, b'{"input_toks":2,"output_toks":7,"arrival_time":5.5,"input_tok_ids":[9,8]}\n'),
    "replay": (
        lambda path: replay.rows(path, Replay(path="x")),
        b'{"request":"req-1","prompt_tokens":4,"output_tokens":3,"cached_tokens":1,"sent_ns":5}\n',
    ),
}
EDITS = st.lists(
    st.tuples(
        st.integers(0, 400),
        st.integers(0, 12),
        st.sampled_from([b"", b"-", b"9" * 30, b"1e308", b"\xff", b",", b'"', b"\n", b"null"]),
    ),
    max_size=4,
)


@pytest.mark.parametrize("kind", SEEDS)
@settings(max_examples=60, deadline=None)
@given(edits=EDITS)
def test_a_damaged_file_is_one_error(kind: str, edits: list[tuple[int, int, bytes]]) -> None:  # SPEC J2
    read, content = SEEDS[kind]
    content = content + content.splitlines(keepends=True)[-1]
    for place, length, new in edits:
        content = content[:place] + new + content[place + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.jsonl"
        path.write_bytes(content)
        try:
            rows = list(read(path))
        except ConfigError:
            return
    for row in rows:
        assert 1 <= row.input_tokens <= TOKENS_MAX
        assert 1 <= row.output_tokens <= TOKENS_MAX
        assert row.at_ns >= 0
    assert [row.at_ns for row in rows] == sorted(row.at_ns for row in rows)
