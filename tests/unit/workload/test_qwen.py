from pathlib import Path

import msgspec
import pytest

from headway.core.errors import ConfigError
from headway.workload import qwen


def line(chat: int, parent: int = -1, **change: object) -> bytes:
    """A line in the shape of the release; the numbers are invented."""
    base: dict[str, object] = {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": 61.114,
        "input_length": 40,
        "output_length": 132,
        "type": "text",
        "turn": 1,
        "hash_ids": [1, 2, 3],
    }
    return msgspec.json.encode(base | change) + b"\n"


def test_turns_of_a_chat_are_one_session(tmp_path: Path) -> None:  # SPEC J2
    path = tmp_path / "q.jsonl"
    path.write_bytes(line(7) + line(8, 7, turn=2) + line(9) + line(10, 8, turn=3) + line(11, 999))
    assert [row.session for row in qwen.rows(path)] == ["7", "7", "9", "7", "11"]


def test_types_are_chosen_and_do_not_break_sessions(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(line(7, type="image") + line(8, 7) + line(9, type="file"))
    (row,) = qwen.rows(path, types=("text",))
    assert (row.session, row.at_ns, row.block_tokens) == ("7", 61_114_000_000, 16)


def test_a_last_block_that_is_not_full_may_be_left_out_but_not_be_too_much(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(line(1, hash_ids=[1, 2]) + line(2, hash_ids=[1, 2, 3]) + line(3, hash_ids=[1, 2, 3, 4]))
    with pytest.raises(ConfigError, match="line 3: 4 hash ids of 16 tokens for 40 input tokens"):
        list(qwen.rows(path))


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(line(1) + line(2, input_length="x"))
    with pytest.raises(ConfigError, match=r"q.jsonl, line 2: Expected `int`, got `str` - at `\$.input_length`"):
        list(qwen.rows(path))
