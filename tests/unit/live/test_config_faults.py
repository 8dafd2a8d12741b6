"""What is wrong is said by its key, in TOML's words, with what is allowed there."""

from typing import Annotated, Literal

import msgspec
import pytest

from headway.live.config_faults import unknown_keys, wrong_values
from headway.sched.registry import PolicyChoice


class Promise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ttft_ms: Annotated[float, msgspec.Meta(gt=0)] | None = None


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    order: PolicyChoice = PolicyChoice("fcfs")
    dtype: Literal["auto", "bfloat16"] = "auto"
    promises: dict[str, Promise] = {}
    rows: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] = ()
    sizes: tuple[Annotated[int, msgspec.Meta(ge=1)], ...] | Literal["auto"] = ()
    weight: float = 1.0
    secret: Annotated[str, msgspec.Meta(min_length=3)] = "abc"

    def __post_init__(self) -> None:
        if self.rows == (7,):
            raise ValueError("rows and weight do not fit")


@pytest.mark.parametrize(
    ("value", "key", "text"),
    [
        ({"order": "priority"}, "order", 'expected a table, got text; write `order = { type = "priority" }`'),
        ({"order": {}}, "order", "`type` is missing; write `order = { type = ..., params = { ... } }`"),
        ({"dtype": "float16"}, "dtype", '"float16" is not one of "auto", "bfloat16"; did you mean "bfloat16"?'),
        ({"promises": {"/x": {"ttft_ms": -5}}}, 'promises."/x".ttft_ms', "expected number (> 0) or unset, got -5"),
        ({"promises": {"a": 3}}, "promises.a", "expected a table with ttft_ms, got 3"),
        ({"rows": [4, 0]}, "rows[1]", "expected integer (≥ 1), got 0"),
        ({"sizes": [4, 0]}, "sizes[1]", "expected integer (≥ 1), got 0"),
        ({"sizes": "aut"}, "sizes", '"aut" is not one of "auto"; did you mean "auto"?'),
        ({"rows": [7]}, "", "rows and weight do not fit"),
        ({"weight": float("inf")}, "weight", "holds a number that is not finite"),
        ({"weight": [1]}, "weight", "expected number, got a list"),
        ({"weight": True}, "weight", "expected number, got true"),
    ],
)
def test_a_wrong_value_names_its_key_and_what_is_allowed(value: dict[str, object], key: str, text: str) -> None:
    (fault,) = wrong_values(Tree, value)
    assert (fault.key, fault.text) == (key, text)


def test_a_text_is_never_shown_it_may_be_a_secret() -> None:
    # SPEC M5
    (fault,) = wrong_values(Tree, {"secret": "xy"})
    assert fault.text == "expected text (at least 3 character(s)), got text"


def test_values_that_fit_have_no_fault() -> None:
    assert wrong_values(Tree, {"rows": [1, 2], "promises": {"a": {"ttft_ms": 3}}}) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"promises": {"/v1/x": {"ttf_ms": 3}}}, '`promises."/v1/x".ttf_ms`; did you mean `promises."/v1/x".ttft_ms`?'),
        ({"order": {"type": "a", "age_ms": 3}}, "into params: `order = { type = ..., params = { age_ms = 3 } }`"),
        ({"order": {"tipe": "a"}}, "did you mean `order.type`?"),
        ({"zzz": 1}, "known here: dtype, order, promises"),
    ],
)
def test_an_unknown_key_says_what_is_near_or_where_it_belongs(value: dict[str, object], text: str) -> None:
    (fault,) = unknown_keys(Tree, value)
    assert text in fault.text
