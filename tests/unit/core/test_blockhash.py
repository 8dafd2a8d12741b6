"""Key completeness (SPEC B2, property P9): whatever decides the KV decides the hash."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.blockhash import block_hashes, cache_root, chain, known_stride

word = st.text(max_size=12)
fields = st.fixed_dictionaries(
    {"model": word, "lora": word, "salt": word, "dtype": word, "media": st.lists(word, max_size=3)}
)


# SPEC B2, B8
@given(one=fields, other=fields)
def test_roots_are_equal_only_when_every_field_is(one: dict[str, object], other: dict[str, object]) -> None:
    assert (cache_root(**one) == cache_root(**other)) == (one == other)  # type: ignore[arg-type]  # built by field


def test_no_field_can_pose_as_another() -> None:
    # vllm#44701: a LoRA name equal to someone's salt gave the same key.
    assert cache_root(model="m", lora="x") != cache_root(model="m", salt="x")
    assert cache_root(model="m", salt="a:1:b") != cache_root(model="m", salt="a", media=["b"])
    assert cache_root(model="ml", lora="x") != cache_root(model="m", lora="lx")


@given(tokens=st.lists(st.integers(0, 2**32 - 1), max_size=70), size=st.integers(1, 9))
def test_one_hash_per_full_block_chained_from_the_root(tokens: list[int], size: int) -> None:
    root = cache_root(model="m")
    hashes = block_hashes(root, tokens, size)
    assert len(hashes) == len(tokens) // size
    parent = root
    for i, value in enumerate(hashes):
        parent = chain(parent, tokens[i * size : (i + 1) * size])
        assert value == parent


@given(tokens=st.lists(st.integers(0, 9), min_size=12, max_size=12), at=st.integers(0, 11))
def test_changing_a_token_changes_its_block_and_every_later_one(tokens: list[int], at: int) -> None:
    root = cache_root(model="m")
    before = block_hashes(root, tokens, 4)
    after = block_hashes(root, [*tokens[:at], tokens[at] + 1, *tokens[at + 1 :]], 4)
    assert [a == b for a, b in zip(before, after, strict=True)] == [i < at // 4 for i in range(3)]


@pytest.mark.parametrize(("block_tokens", "stride"), [(1, 64), (16, 4), (48, 2), (64, 1), (256, 1)])
def test_knowledge_is_kept_in_steps_of_at_least_64_tokens(block_tokens: int, stride: int) -> None:  # GAIE#2878
    assert known_stride(block_tokens) == stride
