"""Hashes over the text of a whole conversation."""

import json

from headway.adapters.gateway.relay.prefix import BLOCK_BYTES, text_hashes

ROOT = ("model", None, "tenant", None, b"")


def messages(*texts: str) -> bytes:
    return json.dumps([{"role": "user", "content": text} for text in texts]).encode()


def test_the_next_turn_begins_with_the_blocks_of_this_one() -> None:
    # sglang#26263, smg#1928: the whole conversation, not its first message
    turn, following = messages("a" * 900, "b" * 900), messages("a" * 900, "b" * 900, "c" * 900)
    first, second = text_hashes(ROOT, turn), text_hashes(ROOT, following)
    assert len(first) == len(turn) // BLOCK_BYTES
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_a_difference_changes_every_block_behind_it() -> None:
    one, other = text_hashes(ROOT, b"a" * 2048), text_hashes(ROOT, b"a" * 600 + b"b" + b"a" * 1447)
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])


def test_what_must_not_share_kv_shares_no_hash() -> None:
    # TensorRT-LLM#18156
    roots = [
        ROOT,
        ("other", None, "tenant", None, b""),
        ("model", "lora", "tenant", None, b""),
        ("model", None, "another", None, b""),
        ("model", None, "tenant", "salt", b""),
        ("model", None, "tenant", None, b"[]"),
    ]
    assert len({text_hashes(root, b"a" * BLOCK_BYTES) for root in roots}) == len(roots)
